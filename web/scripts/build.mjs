// Builds the page into dist/. It is built beside and then moved there, so that whoever starts a server
// meanwhile finds the old files or the new ones, never half of both.
import { chmodSync, existsSync, mkdtempSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "vite";
import { stamp } from "./stamp.mjs";

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const beside = mkdtempSync(join(root, ".building-"));
try {
  // Taken before the build: a source that changes meanwhile makes the result look old, not new.
  const sources = stamp(root);
  await build({ root, build: { outDir: beside, emptyOutDir: true } });
  writeFileSync(join(beside, "stamp.txt"), `${sources}\n`);
  chmodSync(beside, 0o755); // a folder for temporary files is nobody else's to read
  const dist = join(root, "dist");
  const old = `${beside}-old`;
  if (existsSync(dist)) renameSync(dist, old);
  renameSync(beside, dist);
  rmSync(old, { recursive: true, force: true });
} finally {
  rmSync(beside, { recursive: true, force: true });
}
