// Accessibility of every view, light and dark, wide and narrow.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import axe from "axe-core";

import { NARROW, WIDE, launch, open } from "./browser.js";
import { fleet } from "./fleet.js";
import { Service } from "./service.js";

let browser;
let service;

before(async () => {
  browser = await launch();
  service = await Service.start();
  await fleet(service);
  const { verdicts } = await service.ask("ListVerdicts", { detector: "cycle" });
  VIEWS.verdict = [`/verdict?id=${verdicts[0].verdict_id}`, "article.verdict"];
  await service.ask("RateVerdict", { verdict_id: verdicts[0].verdict_id, rating: "RATING_FALSE_ALARM", reason: "it waited" });
});
after(async () => {
  await browser?.close();
  await service?.close();
});

const LOOPING = `/session?id=${encodeURIComponent("coding/round-and-round")}`;
const VIEWS = {
  fleet: ["/", ".sessions tbody tr"],
  session: [LOOPING, ".timeline-plot .event-mark"],
  terminated: [`/session?id=${encodeURIComponent("coding/wrong-branch")}`, "article.verdict"],
  missing: ["/session?id=unknown", ".empty"],
  feed: ["/feed", ".verdict-row"],
  audit: ["/audit", ".verdict-row"],
  policy: ["/policy", ".detectors tbody tr"],
  dialog: [LOOPING, ".timeline-plot .event-mark", "Terminate…"],
};

for (const colorScheme of ["light", "dark"]) {
  for (const [size, viewport] of [["wide", WIDE], ["narrow", NARROW]]) {
    test(`axe finds no violation in any view, ${colorScheme} and ${size}`, async () => {
      for (const [name, [address, ready, button]] of Object.entries(VIEWS)) {
        const { page, context, errors } = await open(browser, service, address, { colorScheme, viewport });
        await page.locator(ready).first().waitFor();
        await page.locator(".pill.live").waitFor();
        if (button) await page.getByRole("button", { name: button }).click();
        await page.evaluate(axe.source);
        const { violations, passes } = await page.evaluate(() => globalThis.axe.run(document));
        assert.ok(passes.length > 10, "axe ran its checks");
        const found = violations.map(({ id, impact, nodes }) => `${impact} ${id}: ${nodes.map((node) => node.target.join(" ")).slice(0, 4).join("; ")}`);
        assert.deepEqual(found, [], name);
        const overflow = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
        assert.equal(overflow, 0, `${name} fits the screen`);
        assert.deepEqual(errors, [], name);
        await context.close();
      }
    });
  }
}
