// Ratings of verdicts, a verdict's own page, and the action in force for a session.

import assert from "node:assert/strict";
import { after, afterEach, before, beforeEach, test } from "node:test";

import { launch, open } from "./browser.js";
import { Service, call, times } from "./service.js";

let browser;
let service;
let opened;

before(async () => { browser = await launch(); });
after(async () => { await browser?.close(); });
beforeEach(async () => { service = await Service.start(); opened = []; });
afterEach(async () => {
  for (const { context, errors } of opened) {
    assert.deepEqual(errors, [], "the page has no errors");
    await context.close();
  }
  await service.close();
});

async function visit(address, options) {
  const page = await open(browser, service, address, options);
  opened.push(page);
  return page;
}

const order = call("get_order", "", { args_json: '{"order_id": 5}', result: "two lamps, unpaid" });

async function verdicts() {
  return (await service.ask("ListVerdicts", { newest_first: true })).verdicts;
}

test("a verdict is rated on its card, and the rating is shown everywhere", async () => {
  await service.record("s", ...times(3, order));
  const { page } = await visit("/session?id=s");
  const card = page.locator("article.verdict").first();
  await card.getByText("Was it right?").waitFor();
  await card.getByRole("button", { name: "False alarm" }).click();
  await card.getByText("Rated false alarm").waitFor();
  // A second rating replaces the first.
  await card.getByRole("button", { name: "Right" }).click();
  await card.getByText("Rated right").waitFor();
  assert.equal(await card.getByRole("button", { name: "Right" }).getAttribute("aria-pressed"), "true");
  const rated = (await verdicts()).filter((verdict) => verdict.feedback);
  assert.deepEqual(rated.map((verdict) => verdict.feedback.rating), ["RATING_RIGHT"]);

  // It is there after a reload, in the audit log, and in the precision of the detector.
  await page.reload();
  await page.locator("article.verdict").first().getByText("Rated right").waitFor();
  await page.goto(`${service.url}/audit?detector=exact_repeat`);
  await page.locator(".verdict-row").getByText("right", { exact: true }).waitFor();
  await page.goto(`${service.url}/policy`);
  await page.locator(".precision").getByText("100%").first().waitFor();
});

test("a verdict has a page of its own, and to open it changes nothing", async () => {
  await service.record("s", ...times(3, order));
  const [verdict] = await verdicts();
  const { page, requests } = await visit(`/verdict?id=${verdict.verdict_id}`);
  await page.locator("article.verdict").getByText("get_order").first().waitFor();
  // The arguments say which call it was.
  await page.locator(".members").getByText("(order_id=5)").waitFor();
  await page.getByRole("link", { name: "s", exact: true }).waitFor();
  assert.ok(!requests.some((url) => url.endsWith("/api/rate_verdict")));
  assert.equal((await verdicts()).length, 1, "no entry was added to the log");
  await page.getByRole("button", { name: "Right" }).click();
  await page.locator(".rating").getByText("Rated right").waitFor();
  await page.getByRole("link", { name: "s", exact: true }).click();
  await page.locator(".timeline-plot").waitFor();
});

test("an unknown verdict is not found", async () => {
  const { page } = await visit("/verdict?id=0199d2a4-6f6e-7c11-8a5e-3f0f5a1c2b3d");
  await page.getByRole("heading", { name: "Verdict not found" }).waitFor();
});

test("the action in force is shown, and times have their zone", async () => {
  await service.record("s", ...times(4, order));
  const { page } = await visit("/session?id=s", { timezoneId: "Asia/Tokyo" });
  const standing = page.locator(".standing");
  await standing.getByText("block", { exact: true }).waitFor();
  await standing.getByText("1 call refused").waitFor();
  assert.match(await page.locator("article.verdict time").first().textContent(), /GMT\+9$/);
  await page.goto(`${service.url}/audit`);
  await page.locator(".filters").getByText("Asia/Tokyo").waitFor();
});

test("after a restart the fleet says since when it has data", async () => {
  await service.record("s", ...times(3, order));
  await service.stop();
  await service.restart();
  const { page } = await visit("/");
  await page.getByRole("link", { name: "s", exact: true }).waitFor();
  await page.getByText(/^Data since .* \(started .*; 1 session restored/).waitFor();
});

test("what a session sends after its termination is shown in red", async () => {
  await service.record("s", order);
  await service.ask("TerminateSession", { session_id: "s", reason: "enough" });
  // What was under way for 2 seconds is not counted.
  const disobeyed = async () => (await service.ask("GetSession", { session_id: "s" })).session.disobeyed;
  while (!(await disobeyed())?.events) await service.record("s", order);
  const { page } = await visit("/session?id=s");
  const fact = page.locator(".fact.disobeyed");
  await fact.getByText("After termination").waitFor();
  const [colour, text] = await fact.evaluate((node) => [getComputedStyle(node.querySelector("dt")).color, getComputedStyle(document.body).color]);
  assert.notEqual(colour, text);
  await page.goto(`${service.url}/`);
  await page.locator(".sessions .disobeyed").getByText(/^went on: /).waitFor();
});
