// The frame of the page: routing between views, connection status, theme, login.

import { call, doors, token } from "./api.js";
import { audit } from "./audit.js";
import { announce, el, fill, said } from "./dom.js";
import { feed } from "./feed.js";
import { fleet } from "./fleet.js";
import { Live } from "./live.js";
import { login } from "./login.js";
import { policy } from "./policy.js";
import { session } from "./session.js";
import * as theme from "./theme.js";
import * as words from "./words.js";

const VIEWS = { "/": fleet, "/session": session, "/feed": feed, "/audit": audit, "/policy": policy };
const NAV = [["/", "Fleet"], ["/feed", "Live"], ["/audit", "Audit"], ["/policy", "Policy"]];

const main = document.getElementById("main");
const live = new Live();
let shown = null;

/** The context of a view. */
const page = {
  live,
  detectors: [],
  /** The signed-in caller. */
  me: { name: "", role: "", may: [] },
  may: (act) => page.me.may.includes(act),
  toast,
  /** Changes parameters of the URL; empty ones are removed. */
  change(changes) {
    const params = new URLSearchParams(location.search);
    for (const [name, value] of Object.entries(changes)) {
      if (value) params.set(name, value);
      else params.delete(name);
    }
    const query = params.toString();
    go(location.pathname + (query ? `?${query}` : ""));
  },
};

function go(address) {
  if (address === location.pathname + location.search) return;
  history.pushState(null, "", address);
  show();
}

/** Shows the view of the URL. The current view is only updated. */
function show() {
  const view = VIEWS[location.pathname] ?? fleet;
  const params = Object.fromEntries(new URLSearchParams(location.search));
  // Each session has its own view.
  const name = location.pathname + (view === session ? params.id : "");
  if (shown?.name === name) {
    shown.update(params);
  } else {
    shown?.close();
    shown = { ...view(params, page), name };
    fill(main, shown.node);
    scrollTo(0, 0);
    document.title = `${shown.title} · Unstuck`;
  }
  for (const link of document.querySelectorAll("#top nav a")) {
    const here = new URL(link.href).pathname === location.pathname;
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href]");
  const elsewhere = event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey || event.defaultPrevented;
  if (!link || elsewhere || new URL(link.href).origin !== location.origin || link.getAttribute("href").startsWith("#")) return;
  event.preventDefault();
  go(new URL(link.href).pathname + new URL(link.href).search);
  main.focus({ preventScroll: true });
});
addEventListener("popstate", show);

/** The connection status. */
const pill = el("span", { class: "pill", role: "status" });
function connection() {
  const wait = Math.max(0, Math.ceil((live.retryAt - Date.now()) / 1000));
  const [kind, text] = {
    connecting: ["waiting", "connecting"],
    behind: ["behind", live.caughtUp ? `catching up, ${words.counted(live.caughtUp, "verdict")}` : "catching up"],
    live: ["live", live.gap ? "live, after a gap" : "live"],
    waiting: ["lost", `disconnected, retry in ${wait} s`],
    asleep: ["waiting", "paused"],
    shut: ["lost", "signed out"],
  }[live.phase];
  if (pill.textContent === text) return;
  if (!pill.classList.contains(kind) && (kind === "lost" || pill.classList.contains("lost"))) {
    announce(kind === "lost" ? "Connection lost, retrying." : "Reconnected.");
    if (kind !== "lost") shown?.refresh();
  }
  pill.className = `pill ${kind}`;
  pill.textContent = text;
  pill.title = live.why ?? "";
}
live.addEventListener("phase", connection);
setInterval(connection, 500);

function toast(title, text) {
  const node = el("div", { class: "toast", role: "status" }, el("b", null, title), " ", text);
  document.body.append(node);
  setTimeout(() => node.remove(), 5000);
}

/** Notes of the health probe: a failing disk, an open breaker. */
const HEALTH_MS = 10_000;
async function health() {
  try {
    const said = await (await fetch("/healthz", { cache: "no-store" })).text();
    const notes = said.trim().split("\n").map((line) => line.replace(/^ok;? ?/, "")).filter(Boolean);
    const text = notes.map((note) => `${note[0].toUpperCase()}${note.slice(1)}.`).join(" ");
    const node = document.getElementById("health");
    if (node.textContent !== text) node.textContent = text;
  } catch { /* The connection status shows it. */ }
}
setInterval(() => document.visibilityState === "visible" && health(), HEALTH_MS);

function top() {
  fill(document.getElementById("top"),
    el("a", { class: "brand", href: "/" }, el("img", { src: "/icon.svg", alt: "", width: 22, height: 22 }), "Unstuck"),
    el("nav", { "aria-label": "Views" }, NAV.map(([href, label]) => el("a", { href }, label))),
    el("span", { class: "space" }), pill, who(), theme.button());
}

/** The signed-in caller, and a button to sign out. */
function who() {
  if (!token.get() || !page.me.name) return null;
  const leave = () => { token.clear(); location.assign("/"); };
  return el("span", { class: "whoami" },
    el("span", { title: `role ${page.me.role}, tenant ${page.me.tenant}` }, said(page.me.name), el("span", { class: "quiet" }, ` ${page.me.role}`)),
    el("button", { type: "button", class: "small", on: { click: leave } }, "Sign out"));
}

function door(why) {
  shown?.close();
  shown = null;
  page.me = { name: "", role: "", may: [] };
  top();
  fill(main, login(why, (text) => { token.set(text); begin(); }));
}

doors.addEventListener("closed", () => {
  const why = token.get() ? "The token is unknown or was revoked." : "";
  token.clear();
  door(why);
});

async function begin() {
  try {
    page.me = await call("me");
    const known = await call("policy");
    page.detectors = known.profiles[0].detectors.map((detector) => detector.name);
  } catch (error) {
    if (error.status === 401) return;
    if (error.status === 403) {
      token.clear();
      door(`No access to the console: ${error.message}.`);
      return;
    }
    // The service is not reachable. The page shows that, and retries on reconnect.
    const again = () => {
      if (live.phase !== "live") return;
      live.removeEventListener("phase", again);
      begin();
    };
    live.addEventListener("phase", again);
  }
  top();
  show();
  live.restart();
}

theme.apply();
health();
top();
connection();
begin();
