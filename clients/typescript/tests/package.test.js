// The packed packages, installed into an empty folder, as users get them.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { copyFile, mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";

import { BIN, PACKAGE, ROOT, Service } from "./service.js";

// npm needs its own settings.
const ENV = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith("UNSTUCK")));
const platform = `${process.platform}-${process.arch}`;
let folder, service;

function run(command, args, options = {}) {
  const done = spawnSync(command, args, { cwd: folder, encoding: "utf8", env: { ...ENV, ...options.env } });
  assert.equal(done.status, options.status ?? 0, `${command} ${args.join(" ")}\n${done.stdout}\n${done.stderr}`);
  return done.stdout.trim();
}

before(async () => {
  folder = await mkdtemp(path.join(tmpdir(), "unstuck-package-"));
  service = await Service.start();
  // What debuggers need takes hundreds of megabytes.
  const program = path.join(folder, "program");
  if (spawnSync("strip", ["-o", program, BIN]).status !== 0) await copyFile(BIN, program);
  run(process.execPath, [path.join(PACKAGE, "scripts/pack.js"), path.join(folder, "packed"), `${platform}=${program}`]);
  const packed = (await readdir(path.join(folder, "packed"))).map((name) => path.join(folder, "packed", name));
  assert.equal(packed.length, 2);
  await writeFile(path.join(folder, "package.json"), "{}");
  // The names of the platforms' packages are not asked for in a registry: both are here.
  run("npm", ["install", "--no-audit", "--no-fund", "--loglevel=error", "--ignore-scripts", ...packed]);
});
after(async () => {
  await service.close();
  await rm(folder, { recursive: true, force: true });
});

test("each package has the license", async () => {
  const license = await readFile(path.join(ROOT, "LICENSE"), "utf8");
  for (const name of ["unstuck", `unstuck-${platform}`]) {
    assert.equal(await readFile(path.join(folder, "node_modules", name, "LICENSE"), "utf8"), license);
  }
});

test("npx unstuck runs the program, with its exit code", () => {
  assert.match(run("npx", ["--no-install", "unstuck", "--version"]), /^unstuck \d/);
  // An empty home has nothing to scan.
  assert.match(run("npx", ["--no-install", "unstuck", "scan"], { env: { HOME: folder } }), /\S/);
  run("npx", ["--no-install", "unstuck", "no-such-command"], { status: 2 });
});

const PROGRAM = `
  const client = new Client({ target: process.argv[1], deadline: 20000 });
  client.record("SESSION", "get", {}, { result: "x" }).then(() => { console.log(client.stats.answered); return client.close(); });`;

test("the installed package is imported and required", async () => {
  assert.equal(run(process.execPath, ["--input-type=module", "--eval", `import { Client } from "unstuck";${PROGRAM.replace("SESSION", "esm")}`, service.target]), "1");
  assert.equal(run(process.execPath, ["--input-type=commonjs", "--eval", `const { Client } = require("unstuck");${PROGRAM.replace("SESSION", "cjs")}`, service.target]), "1");
  assert.equal((await service.session("esm")).events, 1);
  assert.equal((await service.session("cjs")).events, 1);
});

test("without the package of the platform the program says so", async () => {
  await rm(path.join(folder, `node_modules/unstuck-${platform}`), { recursive: true });
  run("npx", ["--no-install", "unstuck", "--version"], { status: 1 });
});
