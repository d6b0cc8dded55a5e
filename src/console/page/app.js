// The frame of the page: routing between views, connection status, theme, login.

import { authEvents, call, token } from "./api.js";
import { audit } from "./audit.js";
import { announce, el, sanitize, setChildren, untrusted } from "./dom.js";
import { feed } from "./feed.js";
import { fleet } from "./fleet.js";
import * as format from "./format.js";
import { Live } from "./live.js";
import { login } from "./login.js";
import { policy } from "./policy.js";
import { session } from "./session.js";
import * as theme from "./theme.js";
import { verdictPage } from "./verdict_page.js";

const VIEWS = { "/": fleet, "/session": session, "/verdict": verdictPage, "/feed": feed, "/audit": audit, "/policy": policy };
const NAV = [["/", "Fleet"], ["/feed", "Live"], ["/audit", "Audit"], ["/policy", "Policy"]];

const main = document.getElementById("main");
const live = new Live();
let currentView = null;

/** The context of a view. */
const page = {
  live,
  detectors: [],
  /** The signed-in caller. */
  me: { name: "", role: "", permissions: [] },
  isAllowed: (action) => page.me.permissions.includes(action),
  toast,
  /** Changes parameters of the URL; empty ones are removed. */
  setParams(changes) {
    const params = new URLSearchParams(location.search);
    for (const [name, value] of Object.entries(changes)) {
      if (value) params.set(name, value);
      else params.delete(name);
    }
    const query = params.toString();
    navigate(location.pathname + (query ? `?${query}` : ""));
  },
};

function navigate(address) {
  if (address === location.pathname + location.search) return;
  history.pushState(null, "", address);
  renderView();
}

/** Shows the view of the URL. The current view is only updated. */
function renderView() {
  const view = VIEWS[location.pathname] ?? fleet;
  const params = Object.fromEntries(new URLSearchParams(location.search));
  // Each session and each verdict has its own view.
  const name = location.pathname + (view === session || view === verdictPage ? params.id : "");
  if (currentView?.name === name) {
    currentView.update(params);
  } else {
    currentView?.close();
    currentView = { ...view(params, page), name };
    setChildren(main, currentView.node);
    scrollTo(0, 0);
    document.title = `${sanitize(currentView.title)} · Unstuck`;
  }
  for (const link of document.querySelectorAll("#top nav a")) {
    const isCurrent = new URL(link.href).pathname === location.pathname;
    if (isCurrent) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href]");
  const opensElsewhere = event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey || event.defaultPrevented;
  if (!link || opensElsewhere || new URL(link.href).origin !== location.origin || link.getAttribute("href").startsWith("#")) return;
  event.preventDefault();
  navigate(new URL(link.href).pathname + new URL(link.href).search);
  main.focus({ preventScroll: true });
});
addEventListener("popstate", renderView);

/** The connection status. */
const pill = el("span", { class: "pill", role: "status" });
function updateConnectionStatus() {
  const wait = Math.max(0, Math.ceil((live.retryAt - Date.now()) / 1000));
  const [kind, text] = {
    connecting: ["waiting", "connecting"],
    catchingUp: ["catching-up", live.caughtUp ? `catching up, ${format.counted(live.caughtUp, "verdict")}` : "catching up"],
    live: ["live", live.gap ? "live, after a gap" : "live"],
    retrying: ["disconnected", `disconnected, retry in ${wait} s`],
    paused: ["waiting", "paused"],
    signedOut: ["disconnected", "signed out"],
  }[live.phase];
  if (pill.textContent === text) return;
  if (!pill.classList.contains(kind) && (kind === "disconnected" || pill.classList.contains("disconnected"))) {
    announce(kind === "disconnected" ? "Connection lost, retrying." : "Reconnected.");
    if (kind !== "disconnected") currentView?.refresh();
  }
  pill.className = `pill ${kind}`;
  pill.textContent = text;
  pill.title = live.reason ?? "";
}
live.addEventListener("phase", updateConnectionStatus);
setInterval(updateConnectionStatus, 500);

function toast(title, text) {
  const node = el("div", { class: "toast", role: "status" }, el("b", null, title), " ", text);
  document.body.append(node);
  setTimeout(() => node.remove(), 5000);
}

/** Notes of the health probe: a failing disk, an open breaker. */
const HEALTH_MS = 10_000;
async function updateHealthNotes() {
  try {
    const body = await (await fetch("/healthz", { cache: "no-store" })).text();
    const notes = body.trim().split("\n").map((line) => line.replace(/^ok;? ?/, "")).filter(Boolean);
    const text = notes.map((note) => `${note[0].toUpperCase()}${note.slice(1)}.`).join(" ");
    const node = document.getElementById("health");
    if (node.textContent !== text) node.textContent = text;
  } catch { /* The connection status shows it. */ }
}
setInterval(() => document.visibilityState === "visible" && updateHealthNotes(), HEALTH_MS);

function renderHeader() {
  setChildren(document.getElementById("top"),
    el("a", { class: "brand", href: "/" }, el("img", { src: "/icon.svg", alt: "", width: 22, height: 22 }), "Unstuck"),
    el("nav", { "aria-label": "Views" }, NAV.map(([href, label]) => el("a", { href }, label))),
    el("span", { class: "space" }), pill, callerInfo(), theme.button());
}

/** The signed-in caller, and a button to sign out. */
function callerInfo() {
  if (!token.get() || !page.me.name) return null;
  const signOut = () => { token.clear(); location.assign("/"); };
  return el("span", { class: "whoami" },
    el("span", { title: `role ${page.me.role}, tenant ${page.me.tenant}` }, untrusted(page.me.name), el("span", { class: "muted" }, ` ${page.me.role}`)),
    el("button", { type: "button", class: "small", on: { click: signOut } }, "Sign out"));
}

function showLogin(message) {
  currentView?.close();
  currentView = null;
  page.me = { name: "", role: "", permissions: [] };
  renderHeader();
  setChildren(main, login(message, (text) => { token.set(text); start(); }));
}

authEvents.addEventListener("unauthorized", () => {
  const message = token.get() ? "The token is unknown or was revoked." : "";
  token.clear();
  showLogin(message);
});

async function start() {
  try {
    page.me = await call("me");
    const policyReport = await call("policy");
    page.detectors = policyReport.profiles[0].detectors.map((detector) => detector.name);
  } catch (error) {
    if (error.status === 401) return;
    if (error.status === 403) {
      token.clear();
      showLogin(`No access to the console: ${error.message}.`);
      return;
    }
    // The service is not reachable. The page shows that, and retries on reconnect.
    const retry = () => {
      if (live.phase !== "live") return;
      live.removeEventListener("phase", retry);
      start();
    };
    live.addEventListener("phase", retry);
  }
  renderHeader();
  renderView();
  live.restart();
}

theme.apply();
updateHealthNotes();
renderHeader();
updateConnectionStatus();
start();
