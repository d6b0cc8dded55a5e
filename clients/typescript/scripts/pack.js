// Packs the built client, and the program of each platform that is given:
//
//   node scripts/pack.js FOLDER [linux-x64=PROGRAM]...
//
// Only packed packages name those of the platforms: until they are published, an install from
// source must not ask a registry for them.
import { spawnSync } from "node:child_process";
import { chmodSync, copyFileSync, cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";

const root = path.resolve(import.meta.dirname, "..");
const [folder, ...programs] = process.argv.slice(2);
if (!folder) throw new Error("usage: pack.js FOLDER [PLATFORM-CPU=PROGRAM]...");
mkdirSync(folder, { recursive: true });
const work = mkdtempSync(path.join(tmpdir(), "unstuck-pack-"));
const { scripts, devDependencies, ...manifest } = JSON.parse(readFileSync(path.join(root, "package.json"), "utf8"));

function pack(name, files, content) {
  const from = path.join(work, name);
  mkdirSync(from);
  files(from);
  // npm packs a file of this name without being told.
  copyFileSync(path.join(root, "../../LICENSE"), path.join(from, "LICENSE"));
  writeFileSync(path.join(from, "package.json"), `${JSON.stringify(content, null, 2)}\n`);
  const { status } = spawnSync("npm", ["pack", "--silent", "--pack-destination", path.resolve(folder)], { cwd: from, stdio: "inherit" });
  if (status !== 0) process.exit(status ?? 1);
}

try {
  const { version, license } = manifest;
  manifest.optionalDependencies = {};
  for (const [platform, program] of programs.map((given) => given.split("="))) {
    const name = `unstuck-${platform}`;
    const [os, cpu] = platform.split("-");
    manifest.optionalDependencies[name] = version;
    const files = (to) => {
      const copy = path.join(to, "unstuck");
      copyFileSync(program, copy);
      chmodSync(copy, 0o755);
      // A program of another platform cannot be asked here.
      if (platform !== `${process.platform}-${process.arch}`) return;
      const has = spawnSync(copy, ["--version"], { encoding: "utf8" }).stdout?.split(" ")[1]?.trim();
      if (has !== version) throw new Error(`the program is of version ${has}, the package of ${version}`);
    };
    pack(name, files, { name, version, license, description: `The program of unstuck for ${platform}`, os: [os], cpu: [cpu], files: ["unstuck"] });
  }
  const files = (to) => {
    for (const one of ["dist", "bin", "README.md"]) cpSync(path.join(root, one), path.join(to, one), { recursive: true });
  };
  pack("unstuck", files, manifest);
} finally {
  rmSync(work, { recursive: true });
}
