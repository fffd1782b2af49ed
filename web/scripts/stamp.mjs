// A hash over everything that the built files are made from. `tests/web/test_serving.py` computes the same,
// without Node, and says so when the built files are older than their sources.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, statSync } from "node:fs";
import { join, relative, sep } from "node:path";

const parts = ["index.html", "package-lock.json", "scripts", "src", "tsconfig.json", "vite.config.ts"];

export function stamp(root) {
  const hash = createHash("sha256");
  const files = parts.flatMap((part) => [...walk(join(root, part))]);
  const named = files.map((file) => [relative(root, file).split(sep).join("/"), file]);
  named.sort(([a], [b]) => (a < b ? -1 : 1));
  for (const [name, file] of named) {
    hash.update(`${name}\0`);
    hash.update(readFileSync(file));
    hash.update("\0");
  }
  return hash.digest("hex");
}

function* walk(path) {
  if (!statSync(path).isDirectory()) {
    yield path;
    return;
  }
  for (const name of readdirSync(path)) {
    if (!name.startsWith(".")) yield* walk(join(path, name));
  }
}
