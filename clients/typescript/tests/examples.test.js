// The examples and the snippet of the README, as they stand there, with a model on loopback.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import path from "node:path";
import { createInterface } from "node:readline";
import { after, before, test } from "node:test";

import { PACKAGE, ROOT, Service } from "./service.js";

let service, folder;
before(async () => {
  service = await Service.start();
  // Inside the package, so that its name and those of the frameworks are found.
  folder = await mkdtemp(path.join(PACKAGE, "build-examples-"));
  await writeFile(path.join(folder, "a.txt"), "hello\n");
  await writeFile(path.join(folder, "notes.txt"), "nothing new");
});
after(async () => {
  await service.close();
  await rm(folder, { recursive: true });
});

function run(command, args, env) {
  return new Promise((resolve) => {
    const child = spawn(command, args, { cwd: folder, env: { PATH: process.env.PATH, HOME: folder, UNSTUCK_SERVER: service.target, ...env }, stdio: ["ignore", "pipe", "pipe"] });
    let output = "";
    for (const stream of [child.stdout, child.stderr]) stream.on("data", (text) => { output += text; });
    child.once("exit", (status) => resolve({ status, output }));
  });
}

async function runCode(name, code, env) {
  // A busy machine may miss the deadline, which is no part of the example.
  assert.ok(code.includes("new Client()"));
  const file = path.join(folder, name);
  await writeFile(file, code.replace("new Client()", "new Client({ deadline: 20_000 })"));
  return run(process.execPath, [file], env);
}

test("the snippet of the README runs", async () => {
  const [, code] = (await readFile(path.join(PACKAGE, "README.md"), "utf8")).match(/```js\n(.*?)```/s);
  const { status, output } = await runCode("readme.mjs", code);
  assert.equal(status, 0, output);
  assert.match(output, /^nothing new\nnothing new\nnothing new\n\n\[unstuck\] /);
});

for (const name of await readdir(path.join(PACKAGE, "examples"))) {
  test(`the example ${name} has at most 15 lines and is stopped`, async () => {
    const code = await readFile(path.join(PACKAGE, "examples", name), "utf8");
    assert.ok(code.trimEnd().split("\n").length <= 15);
    const script = "import sys; sys.path.insert(0, sys.argv[1]); import fake_models as f; m = f.FakeModels(sys.argv[2]); m.default_play = 'read-loop'; m.__enter__(); print(m.url, flush=True); sys.stdin.read()";
    const models = spawn("python3", ["-c", script, path.join(ROOT, "tests/agents"), folder], { stdio: ["pipe", "pipe", "inherit"] });
    try {
      const { value: url } = await createInterface({ input: models.stdout })[Symbol.asyncIterator]().next();
      const { status, output } = await runCode(name, code, {
        OPENAI_BASE_URL: `${url}/v1`, OPENAI_API_KEY: "none", OPENAI_AGENTS_DISABLE_TRACING: "1", ANTHROPIC_BASE_URL: url, ANTHROPIC_API_KEY: "none",
        ANTHROPIC_MODEL: "claude-sonnet-4-5", CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1", DISABLE_AUTOUPDATER: "1", IS_SANDBOX: "1",
      });
      assert.equal(status, 0, output);
      assert.match(output, /stopped: asked 3 times for what was refused/);
    } finally {
      models.kill();
    }
  });
}
