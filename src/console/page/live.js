// The stream of live verdicts. It reconnects whenever the connection ends, and
// resumes after the last verdict received.

import { ApiError, post } from "./api.js";

/** The service sends a keep-alive comment every 15 seconds. */
const IDLE_MS_MAX = 40_000;
const RETRY_MS = 500;
const RETRY_MS_MAX = 10_000;
/** A hidden page closes its connection: a browser allows six for all pages of a service. */
const HIDDEN_MS_MAX = 5000;
/** As many as the feed shows. */
const RECENT_MAX = 500;

const isVisible = () => document.visibilityState === "visible";

export class Live extends EventTarget {
  /** connecting, catchingUp, live, retrying, paused, signedOut */
  phase = "connecting";
  /** Verdicts of the backlog received so far. */
  caughtUp = 0;
  /** Some verdicts were missed: the service no longer retains them. */
  gap = false;
  /** Newest first. */
  recent = [];
  lastVerdictId = "";
  #tries = 0;
  #started = false;
  #wake = () => {};
  #abort = new AbortController();

  constructor() {
    super();
    const wake = () => isVisible() && this.#wake();
    addEventListener("online", wake);
    let hideTimer = 0;
    document.addEventListener("visibilitychange", () => {
      clearTimeout(hideTimer);
      if (isVisible()) this.#wake();
      else hideTimer = setTimeout(() => this.#abort.abort(), HIDDEN_MS_MAX);
    });
  }

  /** Reconnects, perhaps with another token. */
  restart() {
    this.#abort.abort();
    this.#tries = 0;
    this.#wake();
    if (!this.#started) this.#run();
    this.#started = true;
  }

  async #run() {
    for (;;) {
      if (!isVisible()) await this.#sleep("paused", Infinity, "");
      this.#abort = new AbortController();
      let reason = "";
      try {
        await this.#connect(this.#abort.signal);
      } catch (error) {
        reason = error instanceof ApiError ? error.message : "";
        if (error instanceof ApiError && (error.status === 401 || error.status === 403)) {
          await this.#sleep("signedOut", Infinity, reason);
          continue;
        }
        if (error.reason === "VERDICT_NOT_RETAINED" || error.reason === "VERDICT_UNKNOWN") {
          this.lastVerdictId = "";
          this.gap = true;
          continue;
        }
      }
      if (!isVisible()) continue;
      const delay = Math.min(RETRY_MS_MAX, RETRY_MS * 2 ** this.#tries++);
      await this.#sleep("retrying", delay * (0.75 + Math.random() / 2), reason);
    }
  }

  async #connect(signal) {
    if (this.phase !== "retrying") this.#setPhase("connecting");
    const request = this.lastVerdictId ? { after_verdict_id: this.lastVerdictId } : {};
    const response = await post("watch_verdicts", request, { signal });
    this.caughtUp = 0;
    this.#setPhase("catchingUp");
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let buffered = "";
    for (;;) {
      const idleTimer = setTimeout(() => this.#abort.abort(), IDLE_MS_MAX);
      const { done, value } = await reader.read().finally(() => clearTimeout(idleTimer));
      if (done) return;
      const events = (buffered + value).split("\n\n");
      buffered = events.pop();
      for (const event of events) this.#handleEvent(event);
    }
  }

  #handleEvent(event) {
    const fields = {};
    for (const line of event.split("\n")) {
      const colon = line.indexOf(":");
      if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 1).replace(/^ /, "");
    }
    if (fields.event === "verdict") this.#addVerdict(JSON.parse(fields.data));
    else if (fields.event === "live") { this.#tries = 0; this.#setPhase("live"); }
    else if (fields.event === "end") throw new ApiError(0, JSON.parse(fields.data));
  }

  #addVerdict(verdict) {
    // Ids sort by time.
    if (verdict.verdict_id <= this.lastVerdictId) return;
    const isFirst = this.lastVerdictId === "";
    this.lastVerdictId = verdict.verdict_id;
    this.recent.unshift(verdict);
    this.recent.length = Math.min(this.recent.length, RECENT_MAX);
    if (this.phase === "catchingUp" && !isFirst) {
      this.caughtUp += 1;
      this.#setPhase("catchingUp");
    }
    this.dispatchEvent(new CustomEvent("verdict", { detail: verdict }));
  }

  #setPhase(phase, reason = "") {
    this.phase = phase;
    this.reason = reason;
    this.dispatchEvent(new Event("phase"));
  }

  #sleep(phase, delay, reason) {
    this.retryAt = Date.now() + delay;
    this.#setPhase(phase, reason);
    return new Promise((wake) => {
      const timer = delay === Infinity ? 0 : setTimeout(wake, delay);
      this.#wake = () => { clearTimeout(timer); wake(); };
    });
  }
}
