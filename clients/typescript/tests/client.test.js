// The client against a real service: answers, failures of the service, bounds, shutdown.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";

import { ACTIONS, callKey, Client, correctionText, Guard, Refused, Stopped, Verdict } from "unstuck";
import { SessionStatus } from "../dist/esm/gen/unstuck/v1/session_service.js";
import { BIN, PACKAGE, Service, until } from "./service.js";

let service;
before(async () => { service = await Service.start(); });
after(() => service.close());

let round = 0;
// Without a round the service takes calls within 50 ms for those of one model response.
const read = (client, session) => client.record(session, "read_file", { path: "a.rs" }, { result: "text", round: `${(round += 1)}` });

async function connected(options = {}) {
  // A deadline that a busy machine does not miss; tests of the deadline have their own.
  const client = new Client({ target: service.target, deadline: 20_000, ...options });
  await client.record("warm-up", "noop", {});
  return client;
}

test("a loop is warned of, blocked, and its calls are refused before they are made", async () => {
  const client = await connected();
  const actions = [];
  for (let number = 0; number < 4; number += 1) actions.push((await read(client, "loop"))?.action ?? null);
  assert.deepEqual(actions, [null, null, "WARN", "BLOCK"]);
  const refused = await client.check("loop", "read_file", { path: "a.rs" });
  assert.equal(refused.action, "BLOCK");
  assert.match(refused.pattern, /a\.rs/);
  assert.equal(refused.members[0].callKey, callKey("read_file", { path: "a.rs", reason: "again" }));
  assert.equal(await client.check("loop", "read_file", { path: "b.rs" }), null);
  await client.close();
});

test("without an answer the keys of the last one refuse a call", async () => {
  const own = await Service.start();
  const client = new Client({ target: own.target, deadline: 20_000 });
  for (let number = 0; number < 4; number += 1) await read(client, "loop");
  await own.kill();
  await until(() => client.stats.reconnects > 0, "the client notices");
  assert.equal((await client.check("loop", "read_file", { path: "a.rs" })).action, "BLOCK");
  assert.equal(await client.check("loop", "read_file", { path: "b.rs" }), null);
  await client.close();
  await own.close();
});

test("calls of one moment are one batch, and more than a batch are several", async () => {
  const client = await connected({ maxBatch: 10 });
  await Promise.all(Array.from({ length: 100 }, (_, number) => client.record("many", "get", { number }, { result: `${number}` })));
  const { answered, waiting, dropped } = client.stats;
  assert.deepEqual({ answered, waiting, dropped }, { answered: 101, waiting: 0, dropped: 0 });
  assert.equal((await service.session("many")).events, 100);
  await client.close();
});

test("what was not answered is sent again after a restart, and nothing is counted twice", async () => {
  const own = await Service.start();
  const client = new Client({ target: own.target, deadline: 250 });
  const one = (number) => client.record("kill", "get", { number }, { result: `${number}`, callId: `call-${number}` });
  for (let number = 0; number < 5; number += 1) await one(number);
  await until(() => client.stats.waiting === 0, "all is answered");
  await own.kill();
  for (let number = 5; number < 10; number += 1) await one(number);
  assert.equal(client.stats.waiting, 5);
  await own.restart();
  await until(() => client.stats.waiting === 0, "all is answered after the restart");
  assert.equal(client.stats.dropped, 0);
  const { events } = await own.session("kill");
  // The service may have lost what it had counted before, but not what came after.
  assert.ok(events === 10 || events === 5, `${events} events`);
  for (let number = 5; number < 10; number += 1) await one(number);
  await until(() => client.stats.waiting === 0, "the repeats are answered");
  assert.equal((await own.session("kill")).events, events);
  await client.close();
  await own.close();
});

test("a service that hangs costs the deadline three times, then nothing, and its verdict comes later", async () => {
  const own = await Service.start();
  const client = new Client({ target: own.target, deadline: 250 });
  await client.record("hang", "noop", {});
  await until(() => client.stats.waiting === 0, "connected");
  own.signal("SIGSTOP");
  for (let number = 0; number < 20; number += 1) {
    await client.check("hang", "read_file", { path: "a.rs" });
    await read(client, "hang");
  }
  assert.equal(client.stats.missed, 3);
  assert.equal(client.stats.paused, true);
  own.signal("SIGCONT");
  await until(() => client.stats.waiting === 0, "all is answered");
  // What the missed answers asked for is the answer to the next event.
  const verdict = await read(client, "hang");
  assert.ok(verdict.atLeast("BLOCK"), verdict.action);
  await client.close();
  await own.close();
});

test("without a service every call returns null", async () => {
  const client = new Client({ target: "127.0.0.1:1" });
  for (let number = 0; number < 50; number += 1) {
    assert.equal(await read(client, "nobody"), null);
    assert.equal(await client.check("nobody", "read_file", {}), null);
    assert.equal(await client.delta("nobody", "text", { endOfTurn: true }), null);
  }
  assert.ok(client.stats.missed <= 3, `${client.stats.missed} missed`);
  await client.session("nobody").end();
  await client.close();
  assert.equal(await read(client, "closed"), null);
});

test("a full buffer drops the oldest and counts", async () => {
  const client = new Client({ target: "127.0.0.1:1", buffer: 10 });
  await Promise.all(Array.from({ length: 25 }, () => read(client, "full")));
  assert.equal(client.stats.dropped, 15);
  assert.equal(client.stats.waiting, 10);
  await client.close();
});

test("TLS and tokens", async () => {
  const folder = await mkdtemp(path.join(tmpdir(), "unstuck-tls-"));
  const openssl = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=localhost",
    "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", `${folder}/key.pem`, "-out", `${folder}/cert.pem`];
  assert.equal(spawnSync("openssl", openssl).status, 0);
  const made = JSON.parse(spawnSync(BIN, ["token", "new", "--name", "a", "--role", "broker", "--tenant", "t", "--output", "json"], { encoding: "utf8" }).stdout);
  await writeFile(`${folder}/tokens.toml`, made.line);
  const own = await Service.start(`[auth]\ntokens = '${folder}/tokens.toml'\n[tls]\ncert = '${folder}/cert.pem'\nkey = '${folder}/key.pem'\n`);
  const tls = { ca: await readFile(`${folder}/cert.pem`) };
  const client = new Client({ target: `https://${own.target}`, token: made.token, tls, deadline: 20_000 });
  const actions = [];
  for (let number = 0; number < 3; number += 1) actions.push((await read(client, "secured"))?.action ?? null);
  assert.deepEqual(actions, [null, null, "WARN"]);
  const environment = { UNSTUCK_CA: `${folder}/cert.pem`, UNSTUCK_TOKEN_FILE: `${folder}/token` };
  await writeFile(environment.UNSTUCK_TOKEN_FILE, `${made.token}\n`);
  Object.assign(process.env, environment);
  const configured = new Client({ target: `https://${own.target}`, deadline: 20_000 });
  for (const name of Object.keys(environment)) delete process.env[name];
  await read(configured, "configured");
  assert.equal(configured.stats.answered, 1);
  const stranger = new Client({ target: own.target, token: "wrong", tls, deadline: 500 });
  assert.equal(await read(stranger, "secured"), null);
  await until(() => stranger.stats.reconnects > 0, "it is turned away");
  assert.equal(stranger.stats.answered, 0);
  await Promise.all([client.close(), configured.close(), stranger.close(), own.close(), rm(folder, { recursive: true })]);
});

test("no input throws", async () => {
  const client = await connected();
  const cyclic = {};
  cyclic.self = cyclic;
  for (const args of [undefined, null, cyclic, 1n, Symbol("s"), () => 1, "not json", [1], new Date(NaN), "\ud800"]) {
    await client.record("odd", "tool", args, { result: args, error: args });
    await client.check("odd", "tool", args);
  }
  for (const session of ["", "a b", "x".repeat(1000), undefined, null, 5]) await client.record(session, "tool", {});
  await client.record("odd", "", {});
  await client.record("odd", "x".repeat(1000), {}, { usage: { inputTokens: -1, outputTokens: 1e30, costUsd: NaN } });
  await client.turn("odd", "nobody", "text");
  await client.record("odd", "tool", "x".repeat(3e6), { result: "y".repeat(3e6), error: "z".repeat(3e6) });
  assert.ok(client.stats.rejected > 0);
  assert.equal(client.stats.waiting, 0);
  assert.equal(await read(client, "odd-but-alive"), null);
  await client.close();
});

test("an operator's termination is pushed, and is the answer to the next call", async () => {
  const client = await connected();
  await read(client, "pushed");
  const pushed = new Promise((resolve) => client.onPush(resolve));
  client.onPush(() => { throw new Error("of a listener"); });
  await service.ask("terminateSession", { sessionId: "pushed", reason: "wrong task" });
  const verdict = await pushed;
  assert.equal(verdict.action, "TERMINATE");
  assert.equal(verdict.sessionId, "pushed");
  assert.equal(verdict.reason, "wrong task");
  assert.equal(client.stats.listenerErrors, 1);
  assert.equal((await client.check("pushed", "other", {})).action, "TERMINATE");
  await client.close();
  // A client that has heard of nothing learns it by asking.
  const other = await connected();
  assert.equal(other.stopped("pushed"), null);
  assert.equal((await other.check("pushed", "other", {})).action, "TERMINATE");
  assert.equal(other.stopped("pushed").reason, "wrong task");
  await other.close();
});

test("a listener may use the client", async () => {
  const client = await connected();
  await read(client, "listened");
  const answer = new Promise((resolve) => client.onPush(() => resolve(client.record("listener", "told", {}, { result: "x" }))));
  await service.ask("terminateSession", { sessionId: "listened", reason: "enough" });
  assert.equal(await answer, null);
  assert.equal((await service.session("listener")).events, 1);
  await client.close();
});

test("a session has its labels and ends", async () => {
  const client = await connected();
  await client.withSession("labelled", { labels: { team: "blue" } }, async ({ id }) => {
    await read(client, id);
    // It is open before its first event.
    assert.equal((await service.session(id)).labels.team, "blue");
    await client.record(id, "get", {}, { agent: "helper" });
  });
  assert.equal(client.stopped("labelled", "helper"), null);
  assert.equal((await service.session("labelled")).status, SessionStatus.ENDED);
  assert.ok(Symbol.asyncDispose in client.session("another"));
  await client.close();
});

test("a session that the service was not there to open is opened later", async () => {
  const own = await Service.start();
  const client = new Client({ target: own.target, deadline: 250 });
  await own.kill();
  const session = client.session("late", { labels: { team: "blue" } });
  await read(client, session.id);
  await own.restart();
  await until(() => client.stats.waiting === 0, "all is answered");
  await until(async () => (await own.session("late")).labels.team === "blue", "labels");
  await client.close();
  await own.close();
});

test("turns, compactions and long ids", async () => {
  const client = await connected();
  await client.turn("kinds", "agent", "I look at it.");
  await client.compacted("kinds", { contextTokens: 100 });
  for (const end of ["a", "b", "b"]) await client.record("kinds", "get", { end }, { result: "x", callId: "i".repeat(200) + end, round: "r".repeat(200) + end });
  const { timeline } = await service.ask("getSession", { sessionId: "kinds" });
  assert.deepEqual(timeline.map(({ kind }) => kind), [2, 4, 1, 1]);
  assert.equal(client.stats.rejected, 0);
  await client.close();
});

test("the text for the model says how long to wait", () => {
  const text = (action) => correctionText(new Verdict(ACTIONS.indexOf(action), "s", "", { correction: "Slow down.", retryAfter: { seconds: 30, nanos: 0 }, members: [] }));
  assert.equal(text("THROTTLE"), "[unstuck] Slow down. Wait 30 s before you go on.");
  assert.equal(text("WARN"), "[unstuck] Slow down.");
});

test("a guard stops by what is in force already", async () => {
  const client = await connected();
  const failing = ["run", { command: "make test" }];
  const first = new Guard(client, "in-force");
  while (!first.stopped) await first.after(...failing, { error: "exit 1", round: `${(round += 1)}` });
  // Another guard of the session, such as that of a process that was started again.
  const second = new Guard(client, "in-force");
  assert.equal(await second.before("other", {}), null);
  assert.equal((await second.before(...failing)).action, "ESCALATE");
  assert.equal(second.stopped.action, "ESCALATE");
  assert.equal((await second.before("other", {})).action, "ESCALATE");
  const handsOver = new Guard(client, "in-force", { stopAt: "TERMINATE" });
  assert.ok(await handsOver.before(...failing));
  assert.equal(handsOver.stopped, null);
  await client.close();
});

test("a guarded function is corrected, refused and stopped, and its failures are counted", async () => {
  const client = await connected();
  const made = [];
  const tool = client.guarded("guarded", "read_file", async ({ path }) => { made.push(path); return "text"; });
  const said = [];
  for (let number = 0; number < 12; number += 1) {
    said.push(await tool({ path: "a.rs" }).catch((error) => error));
    if (said.at(-1) instanceof Stopped) break;
  }
  assert.equal(said[1], "text");
  assert.match(said[2], /^text\n\n\[unstuck\] /);
  assert.ok(said[4] instanceof Refused, `${said[4]}`);
  assert.ok(said.at(-1) instanceof Stopped, `${said.at(-1)}`);
  assert.equal(made.length, 4);

  const failing = client.guarded("failing", "run", () => { throw new Error("exit 1"); });
  const errors = [];
  for (let number = 0; number < 6; number += 1) errors.push(await failing({ command: "make test" }).catch((error) => error));
  assert.equal(errors[0].message, "exit 1");
  assert.ok(errors.some((error) => error instanceof Refused || error instanceof Stopped), errors.join("; "));
  await client.close();
});

test("text that repeats itself is found while it is written", async () => {
  const client = await connected();
  const sentence = "I will now check the configuration file once more to be sure. ";
  let verdict = null;
  for (let number = 0; number < 60; number += 1) verdict ??= await client.delta("writing", sentence, { turnId: "t" });
  verdict ??= await client.delta("writing", "", { turnId: "t", endOfTurn: true });
  assert.ok(verdict?.atLeast("WARN"), `${verdict?.action}`);
  await client.close();
});

test("an open client does not keep the process alive", () => {
  const program = `import { Client } from "unstuck";
    const client = new Client({ target: "${service.target}", deadline: 20000 });
    await client.record("alive", "get", {}, { result: "x" });
    console.log(client.stats.answered);`;
  const { stdout, status } = spawnSync(process.execPath, ["--input-type=module", "--eval", program], { cwd: PACKAGE, timeout: 15_000, encoding: "utf8" });
  assert.deepEqual({ stdout, status }, { stdout: "1\n", status: 0 });
});

test("require gives the same as import", () => {
  const required = createRequire(import.meta.url)("unstuck");
  assert.deepEqual(Object.keys(required).sort(), ["ACTIONS", "Client", "Guard", "Refused", "Stopped", "Verdict", "callKey", "correctionText"]);
});
