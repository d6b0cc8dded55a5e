// The work of a person on call with the console, in a real browser against a real
// service.

import assert from "node:assert/strict";
import { after, before, beforeEach, afterEach, describe, test } from "node:test";

import { launch, open } from "./browser.js";
import { Service, call, read, times } from "./service.js";

let browser;
let service;
let opened;

before(async () => { browser = await launch(); });
after(async () => { await browser?.close(); });
beforeEach(async () => { service = await Service.start(); opened = []; });
afterEach(async () => {
  for (const { context, requests, errors } of opened) {
    assert.deepEqual(errors, [], "the page has no errors");
    const elsewhere = requests.filter((url) => !url.startsWith(`${service.url}/`));
    assert.deepEqual(elsewhere, [], "the page sends requests only to the service");
    await context.close();
  }
  await service.close();
});

async function visit(address, options) {
  const page = await open(browser, service, address, options);
  opened.push(page);
  return page.page;
}

const link = (page, session) => page.getByRole("link", { name: session, exact: true });
const sessionAt = (id) => `/session?id=${encodeURIComponent(id)}`;
const search = call("search_file_content", "registerWebhook");
const glob = call("glob", "**/webhook*");

test("a looping session appears without a reload, and its timeline shows the loop", async () => {
  const page = await visit("/");
  await page.getByText("No sessions yet.").waitFor();
  let loads = 0;
  page.on("load", () => { loads += 1; });
  await service.record("coding/webhook-search", read("README.md"), ...times(4, search, glob));
  await link(page, "coding/webhook-search").waitFor();
  const row = page.getByRole("row").filter({ has: link(page, "coding/webhook-search") });
  await row.getByText("looping").waitFor();
  await row.getByText("cycle", { exact: true }).waitFor();

  await link(page, "coding/webhook-search").click();
  const marks = page.locator(".timeline-plot .event-mark.cited");
  await marks.first().waitFor();
  const drawn = await marks.evaluateAll((nodes) => nodes.map((node) => ({
    letter: node.querySelector("text").textContent,
    colour: getComputedStyle(node.querySelector("circle")).fill,
    y: node.querySelector("circle").getAttribute("cy"),
  })));
  assert.equal(drawn.map((mark) => mark.letter).join(""), "ABABABAB");
  for (const letter of ["A", "B"]) {
    const own = drawn.filter((mark) => mark.letter === letter);
    assert.equal(new Set(own.map((mark) => `${mark.colour} ${mark.y}`)).size, 1, "equal calls share a colour and a lane");
  }
  assert.equal(new Set(drawn.map((mark) => mark.colour)).size, 2);
  // The trend is plotted, and the verdict has all its parts.
  assert.ok(await page.locator(".timeline-plot .trend polyline").count() >= 1);
  const verdict = page.locator("article.verdict").first();
  for (const words of ["Why now", "Rule", "Fires at", "Events", "Would not fire if", "Wasted", "Correction"]) {
    await verdict.getByText(words, { exact: true }).waitFor();
  }
  await verdict.getByText("laps of 2 to 10 calls").waitFor();
  assert.equal(loads, 0, "the page was not reloaded");
});

test("the correction can be copied", async () => {
  await service.record("s", ...times(3, search));
  const page = await visit(sessionAt("s"), { permissions: ["clipboard-read", "clipboard-write"] });
  await page.getByRole("button", { name: "Copy" }).first().click();
  await page.getByRole("button", { name: "Copied" }).waitFor();
  const copied = await page.evaluate(() => navigator.clipboard.readText());
  assert.equal(copied, (await page.locator("blockquote").first().textContent()));
});

test("a session of an agent program says where it comes from and how to open it again", async () => {
  const body = { hook_event_name: "UserPromptSubmit", session_id: "it's-7", cwd: "/home/dev/demo", prompt: "go" };
  const headers = { "content-type": "application/json" };
  const answer = await fetch(`${service.url}/v1/hooks/claude-code`, { method: "POST", headers, body: JSON.stringify(body) });
  assert.deepEqual(await answer.json(), {});
  const page = await visit(sessionAt("it's-7"));
  await page.getByText("agent=claude-code").waitFor();
  await page.getByText("project=demo").waitFor();
  assert.equal(await page.locator(".head code").textContent(), `claude --resume 'it'\\''s-7'`);
});

describe("operator actions", () => {
  test("a termination needs a reason and reaches an open stream immediately", async () => {
    const stream = service.stream();
    const [third] = (await stream.send("s", ...times(3, search))).results.slice(-1);
    assert.equal(third.action, "ACTION_WARN");
    const page = await visit(sessionAt("s"));
    await page.getByRole("button", { name: "Terminate…" }).click();
    const dialog = page.getByRole("dialog");
    await dialog.getByText("All streams of the session are notified immediately").waitFor();
    await dialog.getByRole("button", { name: "Terminate the session" }).click();
    await dialog.getByText("A reason is required").waitFor();
    await dialog.getByLabel("Reason (required)").fill("it repeats the same calls");
    await dialog.getByLabel("Your name").fill("Mia Jönsson");
    await dialog.getByRole("button", { name: "Terminate the session" }).click();

    const push = await stream.next();
    assert.equal(push.sequence, 0);
    assert.equal(push.results[0].action, "ACTION_TERMINATE");
    assert.equal(push.results[0].verdict.reason, "it repeats the same calls");
    assert.equal(push.results[0].verdict.operator, "Mia Jonsson");
    const [refused] = (await stream.send("s", search)).results;
    assert.equal(refused.action, "ACTION_TERMINATE");
    stream.end();

    // The page shows it without a reload and keeps the timeline.
    await page.locator(".head .state.terminated").waitFor();
    await page.getByText("The state when the session was closed").waitFor();
    await page.locator(".timeline-plot .event-mark.cited").first().waitFor();
    assert.equal(await page.getByRole("button", { name: "Terminate…" }).count(), 0);

    // A page opened later shows the timeline too; after a restart only an open page does.
    const later = await visit(sessionAt("s"));
    await later.locator("article.verdict").nth(1).waitFor();
    assert.equal(await later.locator(".timeline-plot .event-mark.cited").count(), 3);
    assert.deepEqual(await later.locator("article.verdict h3").allTextContents(), ["operator", "exact_repeat"]);
    await service.stop();
    await service.restart();
    const latest = await visit(sessionAt("s"));
    await latest.getByText("or the service was restarted").waitFor();
    await latest.locator(".head .state.terminated").waitFor();
    assert.deepEqual(await latest.locator(".fact dt").allTextContents(), ["Wasted in loops", "Terminated"]);
    await page.locator(".pill.live").waitFor();
    await page.locator(".timeline-plot .event-mark.cited").first().waitFor();
  });

  test("a termination that stopped nothing says so", async () => {
    await service.record("s", search);
    await service.ask("EndSession", { session_id: "s" });
    const page = await visit(sessionAt("s"));
    await page.getByRole("button", { name: "Terminate…" }).click();
    const dialog = page.getByRole("dialog");
    await dialog.getByLabel("Reason (required)").fill("to be sure");
    await dialog.getByRole("button", { name: "Terminate the session" }).click();
    await page.getByText("The session had ended: a tombstone was written. Saved to disk.").waitFor();
  });

  test("a refused action shows the reason", async () => {
    await service.record("s", search);
    const page = await visit(sessionAt("s"));
    await page.getByRole("button", { name: "Snooze…" }).click();
    const dialog = page.getByRole("dialog");
    await dialog.getByLabel("Reason (required)").fill("under investigation");
    await service.ask("TerminateSession", { session_id: "s", reason: "meanwhile" });
    await dialog.getByRole("button", { name: "Snooze the session" }).click();
    await dialog.getByText("Refused: the session is terminated; reset it first.").waitFor();
  });

  test("a snoozed session is marked, and a reset session starts from zero", async () => {
    await service.record("s", ...times(3, search));
    const page = await visit(sessionAt("s"));
    for (const action of ["Snooze", "Reset"]) {
      await page.getByRole("button", { name: `${action}…` }).click();
      const dialog = page.getByRole("dialog");
      await dialog.getByLabel("Reason (required)").fill("it was repaired");
      await dialog.getByRole("button", { name: `${action} the session` }).click();
      await dialog.waitFor({ state: "detached" });
      if (action === "Snooze") await page.getByText("snoozed until").waitFor();
    }
    await page.getByText("No events yet.").waitFor();
    await page.locator(".head .state.active").waitFor();
  });

  test("the dialog works with the keyboard alone", async () => {
    await service.record("s", ...times(3, search));
    const page = await visit("/");
    await link(page, "s").focus();
    await page.keyboard.press("Enter");
    await page.getByRole("button", { name: "Terminate…" }).focus();
    await page.keyboard.press("Enter");
    await page.getByRole("dialog").waitFor();
    assert.equal(await page.evaluate(() => document.activeElement.id), "reason");
    await page.keyboard.press("Escape");
    await page.getByRole("dialog").waitFor({ state: "detached" });
    // The focus returns to the button.
    assert.equal(await page.evaluate(() => document.activeElement.dataset.action), "terminate");
  });
});

test("filters and search are in the URL, which can be shared", async () => {
  await service.ask("OpenSession", { session_id: "web-1", labels: { team: "web" } });
  await service.record("web-1", ...times(3, search));
  await service.ask("OpenSession", { session_id: "web-2", labels: { team: "web" } });
  await service.record("web-2", search);
  await service.record("other", ...times(4, search));
  const page = await visit("/");
  await link(page, "other").waitFor();
  await page.getByLabel("Search ids, labels, profiles").fill("team=web");
  await link(page, "other").waitFor({ state: "detached" });
  await page.getByRole("button", { name: "1 looping" }).click();
  await link(page, "web-2").waitFor({ state: "detached" });
  const address = new URL(page.url());
  assert.deepEqual(Object.fromEntries(address.searchParams), { q: "team=web", status: "looping" });

  const shared = await visit(address.pathname + address.search);
  await link(shared, "web-1").waitFor();
  assert.equal(await shared.locator(".sessions tbody tr").count(), 1);
  assert.equal(await shared.getByLabel("Search ids, labels, profiles").inputValue(), "team=web");
  await page.goBack();
  await link(page, "web-2").waitFor();
});

test("the fleet is sorted by severity, and verdicts per minute are plotted", async () => {
  await service.record("calm", search);
  await service.record("warned", ...times(3, search));
  await service.record("blocked", ...times(4, search));
  const page = await visit("/");
  await page.locator(".sessions tbody tr").nth(2).waitFor();
  const order = await page.locator(".sessions tbody .session-id a").allTextContents();
  assert.deepEqual(order, ["blocked", "warned", "calm"]);
  await page.getByRole("img", { name: "3 verdicts in the last hour" }).waitFor();
  assert.ok(await page.locator(".verdicts-per-minute rect").count() >= 1);
  assert.equal(await page.locator(".sparkline").count(), 2);
});

test("the live feed can be paused and filtered", async () => {
  const page = await visit("/feed");
  await service.record("first", ...times(3, search));
  await link(page, "first").waitFor();
  await page.getByRole("button", { name: "Pause" }).click();
  await service.record("second", ...times(3, search));
  await page.getByRole("button", { name: "Resume (1 new)" }).click();
  await link(page, "second").waitFor();
  await service.ask("TerminateSession", { session_id: "first", reason: "enough" });
  await page.getByText("enough").waitFor();
  await page.getByLabel("Minimum action").selectOption("terminate");
  await link(page, "second").waitFor({ state: "detached" });
  assert.equal(await page.locator(".verdict-row").count(), 1);
  assert.ok(page.url().endsWith("/feed?min_action=terminate"));
});

test("the audit log has pages and filters, newest first", async () => {
  for (let number = 0; number < 60; number += 1) {
    await service.ask("TerminateSession", { session_id: `s-${number}`, reason: "enough" }, { "unstuck-operator": "mia" });
  }
  await service.record("loop", ...times(3, search));
  const page = await visit("/audit");
  await page.locator(".verdict-row").nth(49).waitFor();
  const ids = () => page.locator(".verdict-row a.mono").allTextContents();
  assert.deepEqual((await ids()).slice(0, 3), ["loop", "s-59", "s-58"]);
  await page.getByRole("button", { name: "Older" }).click();
  await link(page, "s-0").waitFor();
  assert.equal((await ids()).length, 11);
  await page.getByRole("button", { name: "Newer" }).click();
  await link(page, "loop").waitFor();
  await page.getByLabel("Detector").selectOption("operator");
  await link(page, "loop").waitFor({ state: "detached" });
  await page.getByLabel("Session id").fill("s-7");
  await link(page, "s-59").waitFor({ state: "detached" });
  assert.deepEqual(await ids(), ["s-7"]);
  await page.getByText("mia").waitFor();
});

test("the policy view shows verdicts beside shadow verdicts", async () => {
  await service.close();
  service = await Service.start('[profiles.trial]\nmode = "shadow"\n');
  await service.record("s", ...times(4, search));
  await service.ask("OpenSession", { session_id: "t", profile: "trial" });
  await service.record("t", ...times(3, search));
  const page = await visit("/policy");
  const counts = async (name) => {
    const row = page.getByRole("row").filter({ has: page.getByRole("rowheader", { name, exact: true }) });
    await row.waitFor();
    return (await row.locator(".verdict-counts").allInnerTexts()).map((text) => text.trim().replace(/\s+/g, " "));
  };
  assert.deepEqual(await counts("default"), ["1 warn 1 block", "–"]);
  assert.deepEqual(await counts("trial"), ["–", "1 warn"]);
  assert.deepEqual(await counts("exact_repeat"), ["default 1 warn 1 block", "trial 1 warn"]);
  await page.getByLabel("Period").selectOption("1");
  assert.ok(page.url().endsWith("/policy?hours=1"));
  assert.deepEqual(await counts("trial"), ["–", "1 warn"]);
  await page.getByRole("button", { name: "default" }).click();
  const cells = async () => {
    const row = page.getByRole("row").filter({ has: page.getByRole("rowheader", { name: "exact_repeat" }) });
    await row.waitFor();
    return [await row.locator("td").nth(3).innerText(), await row.locator("td").nth(4).innerText()].map((text) => text.trim());
  };
  assert.deepEqual(await cells(), ["1 warn 1 block", "–"]);
  await page.getByRole("button", { name: "trial" }).click();
  await page.getByText("shadow mode", { exact: true }).waitFor();
  assert.deepEqual(await cells(), ["–", "1 warn"]);
  assert.ok(page.url().endsWith("/policy?hours=1&profile=trial"));
});

test("a page reconnects after a restart and shows each verdict once", async () => {
  const page = await visit("/feed");
  await service.record("before", ...times(3, search));
  await link(page, "before").waitFor();
  await page.evaluate(() => {
    window.statuses = [];
    const pill = document.querySelector(".pill");
    new MutationObserver(() => window.statuses.push(pill.textContent)).observe(pill, { childList: true });
  });
  await service.stop();
  await page.getByText("disconnected").waitFor();
  await service.restart();
  // These verdicts are issued before or after the page reconnects.
  await service.record("after", ...times(4, search));
  await page.locator(".pill.live").waitFor();
  await page.locator(".verdict-row").nth(2).waitFor();
  const lines = await page.locator(".verdict-row .badge").allTextContents();
  assert.deepEqual(lines, ["block", "warn", "warn"]);
  assert.equal(await page.locator(".pill").textContent(), "live");
  const statuses = await page.evaluate(() => window.statuses);
  assert.ok(statuses.some((text) => text.startsWith("catching up")), `the page was catching up: ${statuses}`);
  await page.getByRole("link", { name: "Fleet" }).first().click();
  await link(page, "after").waitFor();
});

test("a hidden page closes its connection and catches up when it is visible", async () => {
  const page = await visit("/feed");
  await page.locator(".pill.live").waitFor();
  const streams = async () => (await (await fetch(`${service.url}/metrics`)).text()).match(/unstuck_streams{rpc="WatchVerdicts"} (\d+)/)[1];
  const setVisibility = (state) => page.evaluate((state) => {
    Object.defineProperty(document, "visibilityState", { configurable: true, get: () => state });
    document.dispatchEvent(new Event("visibilitychange"));
  }, state);
  assert.equal(await streams(), "1");
  await setVisibility("hidden");
  await page.getByText("paused").waitFor();
  while ((await streams()) !== "0");
  await service.record("meanwhile", ...times(3, search));
  await setVisibility("visible");
  await link(page, "meanwhile").waitFor();
  await page.locator(".pill.live").waitFor();
});

test("the page shows a gap if missed verdicts are no longer stored", async () => {
  await service.close();
  service = await Service.start('[store]\ndir = ""\n');
  const page = await visit("/feed");
  await page.getByText("State is kept in memory only.").waitFor();
  await service.record("before", ...times(3, search));
  await link(page, "before").waitFor();
  await service.stop();
  await service.restart();
  await page.getByText("live, after a gap").waitFor();
  await page.getByText("Some verdicts were missed").waitFor();
});

test("the theme follows the system until the user chooses one", async () => {
  const page = await visit("/", { colorScheme: "dark" });
  const background = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const dark = await background();
  await page.getByRole("button", { name: "Theme: auto" }).click();
  await page.getByRole("button", { name: "Theme: light" }).waitFor();
  assert.notEqual(await background(), dark);
  await page.reload();
  await page.getByRole("button", { name: "Theme: light" }).click();
  assert.equal(await background(), dark);
});
