// Agent text is shown as text and never interpreted.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { launch, open } from "./browser.js";
import { Service, call, times } from "./service.js";

let browser;
let service;

before(async () => {
  browser = await launch();
  service = await Service.start();
});
after(async () => {
  await browser?.close();
  await service?.close();
});

const IMAGE = "<img src=x onerror=window.harmed=1>";
const SESSION = "<img/src=x/onerror=window.harmed=1>";
const BIDI = "\u202eevil\u2066 text\u0000\u200b\u001b[31m\u{e0041}\u00ad";

/** Every text and attribute of the page with a control or invisible character, but for
 * values that a filter sends as they are. */
function invisibleCharacters() {
  const invisible = /[\p{Cc}\p{Cf}\u034f\u2028\u2029\u{e0100}-\u{e01ef}]/u;
  const isHostile = (text) => invisible.test(text.replace(/[\n\t]/g, ""));
  const found = isHostile(document.title) ? [`title ${JSON.stringify(document.title)}`] : [];
  for (const node of document.querySelectorAll("*")) {
    for (const { name, value } of node.attributes) {
      if (name !== "value" && isHostile(value)) found.push(`${node.tagName} ${name}=${JSON.stringify(value).slice(0, 200)}`);
    }
    for (const child of node.childNodes) {
      if (child.nodeType === 3 && isHostile(child.data)) found.push(`${node.tagName} ${JSON.stringify(child.data).slice(0, 200)}`);
    }
  }
  return found;
}

async function hostile() {
  await service.ask("OpenSession", { session_id: SESSION, labels: { [IMAGE]: `"><script>window.harmed=1</script>` } });
  const long = "<b>".repeat(34_000);
  const bad = call(`t<svg/onload=window.harmed=1>`, `${BIDI}${IMAGE}${long}`, { result: long });
  await service.record(SESSION,
    { turn: { role: "ROLE_USER", text: IMAGE } },
    { turn: { role: "ROLE_AGENT", text: long } },
    ...times(5, { ...bad, agent_id: IMAGE }),
    ...times(3, { turn: { role: "ROLE_AGENT", text: `${IMAGE} is what I say. `.repeat(40) } }));
  await service.ask("SnoozeSession", { session_id: SESSION, reason: IMAGE, duration: { seconds: 3600 } }, { "unstuck-operator": "<i>mia</i>" });
}

test("hostile text is shown as plain text in every view", async () => {
  await hostile();
  const views = ["/", `/session?id=${encodeURIComponent(SESSION)}`, "/feed", "/audit", "/policy", `/?q=${encodeURIComponent(IMAGE)}`, `/session?id=${encodeURIComponent(IMAGE)}`, `/audit?detector=${encodeURIComponent(IMAGE)}&page_token=${encodeURIComponent(IMAGE)}`, `/session?id=${encodeURIComponent(BIDI)}`, `/audit?detector=${encodeURIComponent(BIDI)}`, `/?q=${encodeURIComponent(BIDI)}`];
  for (const verdict of (await service.ask("ListVerdicts", {})).verdicts) {
    if (verdict.detector !== "operator") await service.ask("RateVerdict", { verdict_id: verdict.verdict_id, rating: "RATING_RIGHT", reason: IMAGE }, { "unstuck-operator": "<i>mia</i>" });
    views.push(`/verdict?id=${verdict.verdict_id}`);
  }
  views.push(`/verdict?id=${encodeURIComponent(IMAGE)}`);
  for (const view of views) {
    const { page, context, requests, errors } = await open(browser, service, view);
    const dialogs = [];
    page.on("dialog", (dialog) => { dialogs.push(dialog.message()); dialog.dismiss(); });
    await page.locator(".pill.live").waitFor();
    await page.locator("main > *").first().waitFor();
    if (!view.includes("?") || view.startsWith("/session?id=%3Cimg%2F")) {
      if (view !== "/policy") await page.getByText(SESSION, { exact: true }).first().waitFor();
    }
    if (view.startsWith("/session?id=%3Cimg%2F")) {
      await page.locator(".events li").nth(5).waitFor();
      const shown = await page.locator("main").innerText();
      assert.ok(shown.includes("onerror=window.harmed=1>"), "markup is shown as text");
      assert.ok(!/[\u202a-\u202e\u2066-\u2069\u200b\u0000]/.test(shown), "no invisible characters are left");
      assert.ok(shown.includes("\\u{202e}evil"), "invisible characters are escaped");
      const tooltips = await page.locator(".timeline-plot title").allTextContents();
      assert.ok(tooltips.some((text) => text.includes("\\u{202e}evil\\u{2066} text")), "also in the tooltips of the plot");
      // The dialog shows the session id too.
      await page.getByRole("button", { name: "Terminate…" }).click();
      await page.getByRole("dialog").getByText(SESSION).waitFor();
    }
    const result = await page.evaluate(() => ({
      harmed: window.harmed,
      nodes: document.querySelectorAll("main img, main script, main b b, dialog img, [onerror], [onload]").length,
      wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    }));
    assert.deepEqual(result, { harmed: undefined, nodes: 0, wide: 0 }, view);
    assert.deepEqual([errors, dialogs], [[], []], view);
    assert.deepEqual(await page.evaluate(invisibleCharacters), [], view);
    assert.ok(requests.every((url) => url.startsWith(`${service.url}/`) && !url.endsWith("/x")), view);
    await context.close();
  }
});

test("the content security policy blocks scripts and markup from text", async () => {
  const { page, context } = await open(browser, service, "/");
  const result = await page.evaluate(async () => {
    const tries = {};
    try { document.body.innerHTML = "<i>x</i>"; tries.markup = "created"; } catch (error) { tries.markup = error.name; }
    const script = document.createElement("script");
    try { script.text = "window.ran = 1"; document.body.append(script); } catch (error) { tries.script = error.name; }
    tries.ran = window.ran;
    tries.fetched = await fetch("http://127.0.0.1:9/").then(() => "reached", () => "refused");
    return tries;
  });
  assert.deepEqual(result, { markup: "TypeError", script: "TypeError", ran: undefined, fetched: "refused" });
  await context.close();
});
