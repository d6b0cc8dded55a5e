// A real browser, and what it asked for.

import { existsSync } from "node:fs";

import { chromium } from "playwright-core";

const CHROMIUM = process.env.CHROMIUM ?? "/usr/bin/chromium";

export async function launch(more = []) {
  if (!existsSync(CHROMIUM)) throw new Error(`there is no ${CHROMIUM}: install the Debian package chromium`);
  return chromium.launch({
    executablePath: CHROMIUM,
    args: ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync", ...more],
  });
}

export const WIDE = { width: 1280, height: 860 };
export const NARROW = { width: 390, height: 844 };

/** A page of a browser of its own, with what it asked for and what went wrong in it. */
export async function open(browser, service, address = "/", options = {}) {
  const context = await browser.newContext({ viewport: WIDE, reducedMotion: "reduce", ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(60_000);
  const requests = [];
  const faults = [];
  page.on("request", (request) => requests.push(request.url()));
  page.on("pageerror", (error) => faults.push(String(error)));
  page.on("console", (message) => {
    // A connection that is refused while the service is down is no fault of the page.
    if (message.type() === "error" && !message.text().includes("net::ERR") && !message.text().includes("Failed to load resource")) faults.push(message.text());
  });
  await page.goto(service.url + address);
  return { page, context, requests, faults };
}
