// As deployed: over TLS, with tokens, under its own host name.

import assert from "node:assert/strict";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { test } from "node:test";

import { launch } from "./browser.js";
import { Service, call, times } from "./service.js";
import { newTokens, run } from "./tokens.js";

const NAME = "unstuck.example.com";

test("over TLS the page is live, copies to the clipboard, and terminates a session", async () => {
  const folder = await mkdtemp(path.join(tmpdir(), "unstuck-tls-"));
  const [cert, key, file] = ["tls.crt", "tls.key", "tokens.toml"].map((name) => path.join(folder, name));
  await run("openssl", ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
    "-subj", `/CN=${NAME}`, "-addext", `subjectAltName=DNS:${NAME}`, "-keyout", key, "-out", cert]);
  const tokens = await newTokens(file);
  const toml = `console_hosts = ["${NAME}"]\n[tls]\ncert = ${JSON.stringify(cert)}\nkey = ${JSON.stringify(key)}\n[auth]\ntokens = ${JSON.stringify(file)}\n`;
  const service = await Service.start(toml, { ca: await readFile(cert), name: NAME });
  service.token = tokens.broker;
  // The browser resolves the name to this host and accepts the self-signed certificate.
  const browser = await launch([`--host-resolver-rules=MAP ${NAME} 127.0.0.1`]);
  const context = await browser.newContext({ ignoreHTTPSErrors: true, permissions: ["clipboard-read", "clipboard-write"] });
  const page = await context.newPage();
  const requests = [];
  const errors = [];
  page.on("request", (request) => requests.push(request.url()));
  page.on("pageerror", (error) => errors.push(String(error)));
  const origin = `https://${NAME}:${new URL(service.url).port}`;

  const opened = await page.goto(`${origin}/`);
  assert.equal((await opened.securityDetails()).subjectName, NAME);
  assert.equal(await page.evaluate(() => isSecureContext), true);
  await page.getByLabel("Token").fill(tokens.operator);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.locator(".pill.live").waitFor();
  await service.record("s", ...times(3, call("read_file", "a.rs")));
  await page.getByRole("link", { name: "s", exact: true }).click();
  await page.getByRole("button", { name: "Copy" }).first().click();
  await page.getByRole("button", { name: "Copied" }).waitFor();
  await page.getByRole("button", { name: "Terminate…" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("Reason (required)").fill("enough");
  await dialog.getByRole("button", { name: "Terminate the session" }).click();
  await page.locator(".head .state.terminated").waitFor();
  const [refused] = await service.record("s", call("read_file", "a.rs"));
  assert.equal(refused.action, "ACTION_TERMINATE");

  assert.deepEqual(requests.filter((url) => !url.startsWith(`${origin}/`)), [], "all requests go to the service over TLS");
  assert.deepEqual(await context.cookies(), []);
  assert.deepEqual(errors, []);
  await browser.close();
  await service.close();
  await rm(folder, { recursive: true });
});
