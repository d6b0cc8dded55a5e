// What a person on call does with the console, in a real browser against a real
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
  for (const { context, requests, faults } of opened) {
    assert.deepEqual(faults, [], "nothing goes wrong in the page");
    const elsewhere = requests.filter((url) => !url.startsWith(`${service.url}/`));
    assert.deepEqual(elsewhere, [], "the page asks nobody but the service");
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
  await service.record("coding/in-circles", read("README.md"), ...times(4, search, glob));
  await link(page, "coding/in-circles").waitFor();
  const row = page.getByRole("row").filter({ has: link(page, "coding/in-circles") });
  await row.getByText("looping").waitFor();
  await row.getByText("cycle", { exact: true }).waitFor();

  await link(page, "coding/in-circles").click();
  const beads = page.locator(".score .bead.cited");
  await beads.first().waitFor();
  const drawn = await beads.evaluateAll((nodes) => nodes.map((node) => ({
    letter: node.querySelector("text").textContent,
    colour: getComputedStyle(node.querySelector("circle")).fill,
    y: node.querySelector("circle").getAttribute("cy"),
  })));
  assert.equal(drawn.map((bead) => bead.letter).join(""), "ABABABAB");
  for (const letter of ["A", "B"]) {
    const own = drawn.filter((bead) => bead.letter === letter);
    assert.equal(new Set(own.map((bead) => `${bead.colour} ${bead.y}`)).size, 1, "equal calls share colour and line");
  }
  assert.equal(new Set(drawn.map((bead) => bead.colour)).size, 2);
  // The trend as a plot, and the verdict in plain words.
  assert.ok(await page.locator(".score .trend polyline").count() >= 1);
  const verdict = page.locator("article.verdict").first();
  for (const words of ["Why now", "Rule", "Fires at", "Events", "Would not have fired if", "Wasted", "Correction"]) {
    await verdict.getByText(words, { exact: true }).waitFor();
  }
  await verdict.getByText("laps of 2 to 10 calls").waitFor();
  assert.equal(loads, 0, "nothing was loaded anew");
});

test("the correction can be copied", async () => {
  await service.record("s", ...times(3, search));
  const page = await visit(sessionAt("s"), { permissions: ["clipboard-read", "clipboard-write"] });
  await page.getByRole("button", { name: "Copy" }).first().click();
  await page.getByRole("button", { name: "Copied" }).waitFor();
  const copied = await page.evaluate(() => navigator.clipboard.readText());
  assert.equal(copied, (await page.locator("blockquote").first().textContent()));
});

describe("acts", () => {
  test("terminating a session ends a real stream at once, and needs a reason", async () => {
    const stream = service.stream();
    const [third] = (await stream.send("s", ...times(3, search))).results.slice(-1);
    assert.equal(third.action, "ACTION_WARN");
    const page = await visit(sessionAt("s"));
    await page.getByRole("button", { name: "Terminate…" }).click();
    const dialog = page.getByRole("dialog");
    await dialog.getByText("All streams of the session are notified immediately").waitFor();
    await dialog.getByRole("button", { name: "Terminate the session" }).click();
    await dialog.getByText("A reason is required").waitFor();
    await dialog.getByLabel("Reason (required)").fill("it goes in circles");
    await dialog.getByLabel("Your name").fill("Mia Jönsson");
    await dialog.getByRole("button", { name: "Terminate the session" }).click();

    const push = await stream.next();
    assert.equal(push.sequence, 0);
    assert.equal(push.results[0].action, "ACTION_TERMINATE");
    assert.equal(push.results[0].verdict.reason, "it goes in circles");
    assert.equal(push.results[0].verdict.operator, "Mia Jonsson");
    const [refused] = (await stream.send("s", search)).results;
    assert.equal(refused.action, "ACTION_TERMINATE");
    stream.end();

    // Seen at once, without a reload; what led to it stays in sight.
    await page.locator(".head .state.terminated").waitFor();
    await page.getByText("The state when the session was closed").waitFor();
    await page.locator(".score .bead.cited").first().waitFor();
    assert.equal(await page.getByRole("button", { name: "Terminate…" }).count(), 0);

    // Who comes later sees it too; after a restart only a page that was open does.
    const later = await visit(sessionAt("s"));
    await later.locator("article.verdict").nth(1).waitFor();
    assert.equal(await later.locator(".score .bead.cited").count(), 3);
    assert.deepEqual(await later.locator("article.verdict h3").allTextContents(), ["operator", "exact_repeat"]);
    await service.stop();
    await service.again();
    const latest = await visit(sessionAt("s"));
    await latest.getByText("or the service was restarted").waitFor();
    await latest.locator(".head .state.terminated").waitFor();
    assert.deepEqual(await latest.locator(".fact dt").allTextContents(), ["Wasted in loops", "Terminated"]);
    await page.locator(".pill.live").waitFor();
    await page.locator(".score .bead.cited").first().waitFor();
  });

  test("a refused act says why", async () => {
    await service.record("s", search);
    const page = await visit(sessionAt("s"));
    await page.getByRole("button", { name: "Snooze…" }).click();
    const dialog = page.getByRole("dialog");
    await dialog.getByLabel("Reason (required)").fill("somebody looks at it");
    await service.ask("TerminateSession", { session_id: "s", reason: "meanwhile" });
    await dialog.getByRole("button", { name: "Snooze the session" }).click();
    await dialog.getByText("Refused: the session is terminated; reset it first.").waitFor();
  });

  test("a snoozed session is marked, and a reset one begins anew", async () => {
    await service.record("s", ...times(3, search));
    const page = await visit(sessionAt("s"));
    for (const act of ["Snooze", "Reset"]) {
      await page.getByRole("button", { name: `${act}…` }).click();
      const dialog = page.getByRole("dialog");
      await dialog.getByLabel("Reason (required)").fill("it was repaired");
      await dialog.getByRole("button", { name: `${act} the session` }).click();
      await dialog.waitFor({ state: "detached" });
      if (act === "Snooze") await page.getByText("snoozed until").waitFor();
    }
    await page.getByText("No events yet.").waitFor();
    await page.locator(".head .state.active").waitFor();
  });

  test("all of it by the keyboard alone", async () => {
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
    // Back to where it was asked from.
    assert.equal(await page.evaluate(() => document.activeElement.dataset.act), "terminate");
  });
});

test("filters and search stand in the address, which can be shared", async () => {
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

test("the fleet is sorted by how badly sessions are stuck, and the pulse beats", async () => {
  await service.record("calm", search);
  await service.record("warned", ...times(3, search));
  await service.record("blocked", ...times(4, search));
  const page = await visit("/");
  await page.locator(".sessions tbody tr").nth(2).waitFor();
  const order = await page.locator(".sessions tbody .who a").allTextContents();
  assert.deepEqual(order, ["blocked", "warned", "calm"]);
  await page.getByRole("img", { name: "3 verdicts in the last hour" }).waitFor();
  assert.ok(await page.locator(".pulse rect").count() >= 1);
  assert.equal(await page.locator(".spark").count(), 2);
});

test("the live feed pauses and filters", async () => {
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
  assert.equal(await page.locator(".line").count(), 1);
  assert.ok(page.url().endsWith("/feed?least=terminate"));
});

test("the audit log has pages and filters, the newest first", async () => {
  for (let number = 0; number < 60; number += 1) {
    await service.ask("TerminateSession", { session_id: `s-${number}`, reason: "enough" }, { "unstuck-operator": "mia" });
  }
  await service.record("loop", ...times(3, search));
  const page = await visit("/audit");
  await page.locator(".line").nth(49).waitFor();
  const ids = () => page.locator(".line a").allTextContents();
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

test("the policy page shows what was done beside what would have been", async () => {
  await service.close();
  service = await Service.start('[profiles.trial]\nmode = "shadow"\n');
  await service.record("s", ...times(4, search));
  await service.ask("OpenSession", { session_id: "t", profile: "trial" });
  await service.record("t", ...times(3, search));
  const page = await visit("/policy");
  const counts = async (name) => {
    const row = page.getByRole("row").filter({ has: page.getByRole("rowheader", { name, exact: true }) });
    await row.waitFor();
    return (await row.locator(".tallied").allInnerTexts()).map((text) => text.trim().replace(/\s+/g, " "));
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

test("a page finds its way back after a restart, with no verdict lost or shown twice", async () => {
  const page = await visit("/feed");
  await service.record("before", ...times(3, search));
  await link(page, "before").waitFor();
  await page.evaluate(() => {
    window.said = [];
    const pill = document.querySelector(".pill");
    new MutationObserver(() => window.said.push(pill.textContent)).observe(pill, { childList: true });
  });
  await service.stop();
  await page.getByText("disconnected").waitFor();
  await service.again();
  // Given while the page was away, or not: it cannot know.
  await service.record("after", ...times(4, search));
  await page.locator(".pill.live").waitFor();
  await page.locator(".line").nth(2).waitFor();
  const lines = await page.locator(".line .badge").allTextContents();
  assert.deepEqual(lines, ["block", "warn", "warn"]);
  assert.equal(await page.locator(".pill").textContent(), "live");
  const said = await page.evaluate(() => window.said);
  assert.ok(said.some((text) => text.startsWith("catching up")), `it said that it was behind: ${said}`);
  await page.getByRole("link", { name: "Fleet" }).first().click();
  await link(page, "after").waitFor();
});

test("a page that nobody sees lets go of its connection, and misses nothing", async () => {
  const page = await visit("/feed");
  await page.locator(".pill.live").waitFor();
  const streams = async () => (await (await fetch(`${service.url}/metrics`)).text()).match(/unstuck_streams{rpc="WatchVerdicts"} (\d+)/)[1];
  const seen = (state) => page.evaluate((state) => {
    Object.defineProperty(document, "visibilityState", { configurable: true, get: () => state });
    document.dispatchEvent(new Event("visibilitychange"));
  }, state);
  assert.equal(await streams(), "1");
  await seen("hidden");
  await page.getByText("paused").waitFor();
  while ((await streams()) !== "0");
  await service.record("meanwhile", ...times(3, search));
  await seen("visible");
  await link(page, "meanwhile").waitFor();
  await page.locator(".pill.live").waitFor();
});

test("where verdicts were missed for good the page says so", async () => {
  await service.close();
  service = await Service.start('[store]\ndir = ""\n');
  const page = await visit("/feed");
  await page.getByText("State is kept in memory only.").waitFor();
  await service.record("before", ...times(3, search));
  await link(page, "before").waitFor();
  await service.stop();
  await service.again();
  await page.getByText("live, after a gap").waitFor();
  await page.getByText("Some verdicts were missed").waitFor();
});

test("colours follow the system until somebody says otherwise", async () => {
  const page = await visit("/", { colorScheme: "dark" });
  const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const dark = await ground();
  await page.getByRole("button", { name: "Theme: auto" }).click();
  await page.getByRole("button", { name: "Theme: light" }).waitFor();
  assert.notEqual(await ground(), dark);
  await page.reload();
  await page.getByRole("button", { name: "Theme: light" }).click();
  assert.equal(await ground(), dark);
});
