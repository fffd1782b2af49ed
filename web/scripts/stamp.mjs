// Computes a hash of the sources of built files. The tests compute the same hash without Node and fail if the built
// files are outdated.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, statSync } from "node:fs";
import { join, relative, sep } from "node:path";

export const CLIENT_SOURCES = ["client/src", "package-lock.json", "scripts"];
export const PAGE_SOURCES = [...CLIENT_SOURCES, "index.html", "src", "tsconfig.json", "vite.config.ts"];

export function stamp(root, sources) {
  const hash = createHash("sha256");
  const files = sources.flatMap((source) => [...walk(join(root, source))]);
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
