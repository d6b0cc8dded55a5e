// The page of `unstuck scan --html` in a real browser.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";

import axe from "axe-core";

import { NARROW, WIDE, launch, open } from "./browser.js";
import { BIN } from "./service.js";

const ROOT = fileURLToPath(new URL("../..", import.meta.url));
const PROGRAM = BIN;
const HOME = path.join(ROOT, "tests/fixtures/transcripts");

let browser;
let folder;
before(async () => {
  browser = await launch();
  folder = await mkdtemp(path.join(tmpdir(), "unstuck-scan-"));
});
after(async () => {
  await browser.close();
  await rm(folder, { recursive: true });
});

function write(...more) {
  const file = path.join(folder, "scan.html");
  execFileSync(PROGRAM, ["scan", "--html", file, ...more], { env: { HOME }, cwd: HOME, stdio: "pipe" });
  return { url: pathToFileURL(file).href };
}

for (const colorScheme of ["light", "dark"]) {
  for (const [size, viewport] of Object.entries({ wide: WIDE, narrow: NARROW })) {
    test(`axe finds no violation in the page of a scan, ${colorScheme} and ${size}`, async () => {
      for (const more of [[], ["--full"]]) {
        const written = write(...more);
        const { page, context, requests, errors } = await open(browser, written, "", { colorScheme, viewport });
        await page.evaluate(axe.source);
        const { violations, passes } = await page.evaluate(() => globalThis.axe.run(document));
        assert.ok(passes.length > 10, "axe ran its checks");
        assert.deepEqual(violations.map((violation) => [violation.id, violation.nodes.map((node) => node.html)]), []);
        assert.deepEqual(requests, [written.url], "nothing else is loaded");
        assert.deepEqual(errors, []);
        const wider = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
        assert.equal(wider, 0, "the page does not scroll sideways");
        await context.close();
      }
    });
  }
}

test("the page names the cost and shows the calls of the worst sessions", async () => {
  const { page, context } = await open(browser, write(), "");
  assert.match(await page.locator("h1").innerText(), /^5 of 13 sessions looped: \$0\.12 of \$0\.24/);
  assert.equal(await page.locator("article").count(), 5);
  assert.ok((await page.locator("article .mark").count()) >= 5, "verdicts are marked");
  // The failing run of the first session, as in the console: equal calls share a letter.
  const plot = page.locator("article").first().getByRole("img");
  assert.match(await plot.getAttribute("aria-label"), /a letter: · A A A A/);
  assert.equal(await page.locator("article").first().locator(".cited .failed").count(), 12);
  assert.match(await page.locator(".facts").innerText(), /A guard would have saved\s+\$0\.0907/);
  if (process.env.UNSTUCK_SCREENSHOTS) {
    await page.screenshot({ path: path.join(path.resolve(process.env.UNSTUCK_SCREENSHOTS), "scan-light.png") });
  }
  await context.close();
});
