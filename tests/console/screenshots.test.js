// The screenshots of the documentation. They are saved in the directory
// UNSTUCK_SCREENSHOTS; without it the tests leave no files.

import assert from "node:assert/strict";
import { mkdtemp, rm, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { test } from "node:test";

import { NARROW, launch, open } from "./browser.js";
import { fleet } from "./fleet.js";
import { Service } from "./service.js";

test("screenshots of both views, light and dark", async () => {
  const target = process.env.UNSTUCK_SCREENSHOTS;
  const folder = target ? path.resolve(target) : await mkdtemp(path.join(tmpdir(), "unstuck-screenshots-"));
  const browser = await launch();
  const service = await Service.start();
  await fleet(service);
  const views = {
    fleet: ["/", ".sessions tbody tr"],
    session: [`/session?id=${encodeURIComponent("coding/round-and-round")}`, ".timeline-plot .event-mark"],
  };
  for (const [name, [address, ready]] of Object.entries(views)) {
    for (const colorScheme of ["light", "dark"]) {
      const { page, context } = await open(browser, service, address, { colorScheme });
      await page.locator(ready).first().waitFor();
      await page.locator(".pill.live").waitFor();
      await screenshot(page, path.join(folder, `${name}-${colorScheme}.png`));
      await context.close();
    }
    const { page, context } = await open(browser, service, address, { viewport: NARROW });
    await page.locator(ready).first().waitFor();
    await page.locator(".pill.live").waitFor();
    await screenshot(page, path.join(folder, `${name}-narrow.png`));
    await context.close();
  }
  await browser.close();
  await service.close();
  if (!target) await rm(folder, { recursive: true });
});

async function screenshot(page, file) {
  await page.screenshot({ path: file });
  assert.ok((await stat(file)).size > 10_000, "the image is not empty");
}
