// With ten thousand sessions the page stays small and the service fast.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { launch, open } from "./browser.js";
import { Service, call, times } from "./service.js";

const SESSIONS = 10_000;
const BATCH = 250;

let browser;
let service;

before(async () => {
  browser = await launch();
  service = await Service.start();
  const stream = service.stream();
  for (let from = 0; from < SESSIONS; from += BATCH) {
    const events = Array.from({ length: BATCH }, (_, at) => ({ session_id: `agent-${String(from + at).padStart(5, "0")}`, ...call("read_file", "a.rs") }));
    await stream.send("", ...events);
  }
  stream.end();
  await service.record("agent-07777", ...times(3, call("read_file", "a.rs")));
});
after(async () => {
  await browser?.close();
  await service?.close();
});

test("with 10,000 sessions the page stays small and search finds each of them", async (t) => {
  const { page, context, errors } = await open(browser, service, "/");
  await page.evaluate(() => {
    window.longTasks = 0;
    new PerformanceObserver((list) => { window.longTasks += list.getEntries().length; }).observe({ type: "longtask", buffered: true });
  });
  await page.getByText("of 10,000 sessions").waitFor();
  assert.equal(await page.locator(".sessions tbody tr").count(), 50);
  assert.equal(await page.locator(".sessions tbody .session-id a").first().textContent(), "agent-07777", "the looping session is first");
  const size = async () => page.evaluate(() => document.querySelectorAll("*").length);
  assert.ok(await size() < 2_500, "the size of the page does not grow with the fleet");

  await page.getByRole("button", { name: "Next" }).click();
  await page.getByText("51–100 of 10,000 sessions").waitFor();
  await page.getByLabel("Search ids, labels, profiles").fill("agent-0499");
  await page.getByText("10 sessions", { exact: true }).waitFor();
  assert.equal(await page.locator(".sessions tbody tr").count(), 10);

  t.diagnostic(`tasks of more than 50 ms in the page: ${await page.evaluate(() => window.longTasks)}`);

  // The last page.
  await page.goto(`${service.url}/?page=200`);
  await page.getByText("9,951–10,000 of 10,000 sessions").waitFor();
  assert.ok(await page.getByRole("button", { name: "Next" }).isDisabled());
  assert.deepEqual(errors, []);
  await context.close();
});

test("5,000 verdicts do not fill the page, and brokers get their answers", async (t) => {
  const { page, context, errors, requests } = await open(browser, service, "/feed");
  await page.locator(".pill.live").waitFor();
  const calls = () => requests.filter((url) => url.includes("/api/")).length;
  const before = calls();
  const stream = service.stream();
  for (let round = 0; round < 20; round += 1) {
    const events = Array.from({ length: BATCH }, (_, at) => ({ session_id: `agent-${String(round * BATCH + at).padStart(5, "0")}`, ...call("read_file", "a.rs") }));
    const answers = await Promise.all([stream.send("", ...events), stream.send("", ...events)]);
    assert.equal(answers[1].results.filter((result) => result.action === "ACTION_WARN").length > 0, true);
  }
  stream.end();
  await page.getByRole("link", { name: "agent-04999", exact: true }).first().waitFor();
  assert.equal(await page.locator(".verdict-row").count(), 200, "only the last verdicts are shown");
  assert.equal(calls(), before, "verdicts arrive on the stream, without a request each");
  await page.locator(".pill.live").waitFor();
  assert.deepEqual(errors, []);
  t.diagnostic("5,000 verdicts were issued");
  await context.close();
});
