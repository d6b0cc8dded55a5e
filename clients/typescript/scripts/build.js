// Compiles src twice: dist/esm for `import`, dist/cjs for `require`.
import { spawnSync } from "node:child_process";
import { rmSync, writeFileSync } from "node:fs";
import path from "node:path";

const root = path.resolve(import.meta.dirname, "..");
rmSync(path.join(root, "dist"), { recursive: true, force: true });
const formats = [["esm", "esnext", "module"], ["cjs", "commonjs", "commonjs"]];
for (const [folder, module, type] of formats) {
  const args = [path.join(root, "node_modules/typescript/bin/tsc"), "--project", root, "--module", module, "--outDir", `dist/${folder}`];
  const { status } = spawnSync(process.execPath, args, { cwd: root, stdio: "inherit" });
  if (status !== 0) process.exit(status ?? 1);
  // Says how Node.js reads the files of this folder.
  writeFileSync(path.join(root, "dist", folder, "package.json"), `{"type":"${type}"}\n`);
}
