// The pictures in the documentation, made where UNSTUCK_SCREENSHOTS names a
// folder: a run of the tests leaves the tree as it was.

import path from "node:path";
import { test } from "node:test";

import { NARROW, launch, open } from "./browser.js";
import { fleet } from "./fleet.js";
import { Service } from "./service.js";

const folder = process.env.UNSTUCK_SCREENSHOTS;

test("pictures of both views, light and dark", { skip: folder ? false : "UNSTUCK_SCREENSHOTS is not set" }, async () => {
  const browser = await launch();
  const service = await Service.start();
  await fleet(service);
  const views = {
    fleet: ["/", ".sessions tbody tr"],
    session: [`/session?id=${encodeURIComponent("coding/round-and-round")}`, ".score .bead"],
  };
  for (const [name, [address, ready]] of Object.entries(views)) {
    for (const colorScheme of ["light", "dark"]) {
      const { page, context } = await open(browser, service, address, { colorScheme });
      await page.locator(ready).first().waitFor();
      await page.locator(".pill.live").waitFor();
      await page.screenshot({ path: path.join(folder, `${name}-${colorScheme}.png`) });
      await context.close();
    }
    const { page, context } = await open(browser, service, address, { viewport: NARROW });
    await page.locator(ready).first().waitFor();
    await page.locator(".pill.live").waitFor();
    await page.screenshot({ path: path.join(folder, `${name}-narrow.png`) });
    await context.close();
  }
  await browser.close();
  await service.close();
});
