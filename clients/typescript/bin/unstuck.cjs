#!/usr/bin/env node
// Runs the program, which is in a package of its own for each platform.
const { spawnSync } = require("node:child_process");

const name = `unstuck-${process.platform}-${process.arch}`;
let program;
try {
  program = require.resolve(`${name}/unstuck`);
} catch {
  console.error(`unstuck: the package ${name} is not installed, or there is none for this platform; the program can be built from source`);
  process.exit(1);
}
const { status, signal, error } = spawnSync(program, process.argv.slice(2), { stdio: "inherit" });
if (error) console.error(`unstuck: ${error.message}`);
if (signal) process.kill(process.pid, signal);
process.exitCode = status ?? 1;
