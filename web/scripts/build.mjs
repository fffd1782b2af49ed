// Builds the page into dist/ and the client of the extension into ../extension/client/. Both are committed.
import { chmodSync, existsSync, mkdtempSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "vite";
import { CLIENT_SOURCES, PAGE_SOURCES, stamp } from "./stamp.mjs";

const root = dirname(dirname(fileURLToPath(import.meta.url)));

await replaceFolder(join(root, "dist"), PAGE_SOURCES, (outDir) =>
  build({ root, build: { outDir, emptyOutDir: true } }),
);

await replaceFolder(join(dirname(root), "extension", "client"), CLIENT_SOURCES, async (outDir) => {
  await build({
    root,
    configFile: false,
    publicDir: false,
    build: {
      outDir,
      emptyOutDir: true,
      target: "chrome123", // `minimum_chrome_version` in the manifest
      minify: false, // keep the code of the extension readable
      lib: { entry: "client/src/index.ts", formats: ["es"], fileName: () => "index.js" },
    },
  });
  // The type checker reads the sources.
  writeFileSync(join(outDir, "index.d.ts"), 'export * from "../../web/client/src/index.ts";\n');
});

/**
 * Build into a new folder, then move it to `target`. A server that starts meanwhile finds either all old files or all
 * new ones.
 */
async function replaceFolder(target, sources, make) {
  const beside = mkdtempSync(join(dirname(target), ".building-"));
  try {
    // Computed before the build. If a source changes during the build, the check then reports an outdated build.
    const hash = stamp(root, sources);
    await make(beside);
    writeFileSync(join(beside, "stamp.txt"), `${hash}\n`);
    chmodSync(beside, 0o755); // a temporary folder is readable by its owner only
    const old = `${beside}-old`;
    if (existsSync(target)) renameSync(target, old);
    renameSync(beside, target);
    rmSync(old, { recursive: true, force: true });
  } finally {
    rmSync(beside, { recursive: true, force: true });
  }
}
