// A real browser, with its requests and errors.

import { existsSync } from "node:fs";

import { chromium } from "playwright-core";

const CHROMIUM = process.env.CHROMIUM ?? "/usr/bin/chromium";

export async function launch(more = []) {
  if (!existsSync(CHROMIUM)) throw new Error(`${CHROMIUM} does not exist: install the Debian package chromium`);
  return chromium.launch({
    executablePath: CHROMIUM,
    args: ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync", ...more],
  });
}

export const WIDE = { width: 1280, height: 860 };
export const NARROW = { width: 390, height: 844 };

/** A page in its own browser context, with its requests and errors. */
export async function open(browser, service, address = "/", options = {}) {
  const context = await browser.newContext({ viewport: WIDE, reducedMotion: "reduce", ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(60_000);
  const requests = [];
  const errors = [];
  page.on("request", (request) => requests.push(request.url()));
  page.on("pageerror", (error) => errors.push(String(error)));
  page.on("console", (message) => {
    // A refused connection while the service is down is not an error of the page.
    if (message.type() === "error" && !message.text().includes("net::ERR") && !message.text().includes("Failed to load resource")) errors.push(message.text());
  });
  await page.goto(service.url + address);
  return { page, context, requests, errors };
}
