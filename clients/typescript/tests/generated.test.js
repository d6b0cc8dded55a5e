// The checked-in stubs are those of proto/.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdtemp, readdir, readFile, rm } from "node:fs/promises";
import path from "node:path";
import { test } from "node:test";

import { PACKAGE } from "./service.js";

async function files(folder) {
  const names = (await readdir(folder, { recursive: true })).filter((name) => name.endsWith(".ts")).sort();
  return Promise.all(names.map(async (name) => [name, await readFile(path.join(folder, name), "utf8")]));
}

test("src/gen is what npm run generate writes", async () => {
  const folder = await mkdtemp(path.join(PACKAGE, "build-generated-"));
  try {
    const template = JSON.stringify({
      version: "v2",
      inputs: [{ directory: "../../proto" }],
      plugins: [{ local: "node_modules/.bin/protoc-gen-ts_proto", out: path.relative(PACKAGE, folder), opt: (await readFile(path.join(PACKAGE, "buf.gen.yaml"), "utf8")).match(/(?<=- )\w+=\S+/g) }],
    });
    const { status, stderr } = spawnSync("node_modules/.bin/buf", ["generate", "--template", template], { cwd: PACKAGE, encoding: "utf8" });
    assert.equal(status, 0, stderr);
    const expected = await files(folder);
    assert.ok(expected.length >= 4);
    assert.deepEqual(await files(path.join(PACKAGE, "src/gen")), expected, "run: npm run generate");
  } finally {
    await rm(folder, { recursive: true });
  }
});
