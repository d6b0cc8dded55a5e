// Sign-in with tokens, and the permissions of the roles.

import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";

import { launch, open } from "./browser.js";
import { Service, call, times } from "./service.js";
import { newTokens } from "./tokens.js";

let browser;
let service;
let folder;
let tokens;

before(async () => {
  folder = await mkdtemp(path.join(tmpdir(), "unstuck-tokens-"));
  const file = path.join(folder, "tokens.toml");
  tokens = await newTokens(file);
  browser = await launch();
  service = await Service.start(`[auth]\ntokens = ${JSON.stringify(file)}\n`);
  service.token = tokens.broker;
  await service.record("s", ...times(3, call("read_file", "a.rs")));
});
after(async () => {
  await browser?.close();
  await service?.close();
  await rm(folder, { recursive: true });
});

async function signIn(page, token) {
  await page.getByLabel("Token").fill(token);
  await page.getByRole("button", { name: "Sign in" }).click();
}

test("a viewer sees all data and no action buttons", async () => {
  const { page, context, errors, requests } = await open(browser, service, "/session?id=s");
  await signIn(page, tokens.viewer);
  await page.locator(".timeline-plot .event-mark.cited").first().waitFor();
  await page.locator(".pill.live").waitFor();
  await page.getByText("viewer").first().waitFor();
  assert.equal(await page.locator("[data-action]").count(), 0);
  // The service checks the role again.
  const forced = await page.evaluate(async () => {
    const answer = await fetch("/api/terminate_session", {
      method: "POST",
      headers: { "content-type": "application/json", authorization: `Bearer ${sessionStorage.getItem("unstuck.token")}` },
      body: JSON.stringify({ session_id: "s", reason: "by hand" }),
    });
    return [answer.status, (await answer.json()).message];
  });
  assert.deepEqual(forced, [403, "the role viewer may not do this"]);
  assert.deepEqual(await context.cookies(), [], "no cookie");
  assert.ok(requests.every((url) => !url.includes(tokens.viewer)), "the token is in no URL");
  assert.deepEqual(errors, []);
  await context.close();
});

test("an unknown token and a broker's token are refused with a reason", async () => {
  const { page, context } = await open(browser, service, "/");
  await signIn(page, "unstuck_wrong");
  await page.getByText("The token is unknown or was revoked").waitFor();
  await signIn(page, tokens.broker);
  await page.getByText("the role broker may not do this").waitFor();
  await signIn(page, tokens.viewer);
  await page.getByRole("link", { name: "s", exact: true }).waitFor();
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByLabel("Token").waitFor();
  await context.close();
});

test("an operator's action is recorded with the token's name", async () => {
  const { page, context, errors } = await open(browser, service, "/session?id=s");
  await signIn(page, tokens.operator);
  await page.getByRole("button", { name: "Terminate…" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByText("your name, operator").waitFor();
  assert.equal(await dialog.getByLabel("Your name").count(), 0);
  await dialog.getByLabel("Reason (required)").fill("enough");
  await dialog.getByRole("button", { name: "Terminate the session" }).click();
  await page.locator(".head .state.terminated").waitFor();
  await page.getByRole("link", { name: "Audit", exact: true }).click();
  await page.getByText("enough").waitFor();
  await page.locator(".verdict-row").first().getByText("operator").first().waitFor();
  assert.deepEqual(errors, []);
  await context.close();
});
