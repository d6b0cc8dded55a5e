// Tokens created by `unstuck token new`.

import { execFile } from "node:child_process";
import { writeFile } from "node:fs/promises";
import { promisify } from "node:util";

import { BIN } from "./service.js";

export const run = promisify(execFile);

/** One token per role, named like it. Writes their hashes to the file. */
export async function newTokens(file) {
  const tokens = {};
  const lines = [];
  for (const role of ["broker", "viewer", "operator"]) {
    const { stdout } = await run(BIN, ["token", "new", "--name", role, "--role", role]);
    tokens[role] = stdout.match(/unstuck_\S+/)[0];
    lines.push(stdout.match(/^".*$/m)[0]);
  }
  await writeFile(file, lines.join("\n"));
  return tokens;
}
