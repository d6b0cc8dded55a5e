// The stream of live verdicts. It reconnects whenever the connection ends, and
// resumes after the last verdict received.

import { open, Refused } from "./api.js";

/** The service sends a keep-alive comment every 15 seconds. */
const SILENCE_MS_MAX = 40_000;
const PAUSE_MS = 500;
const PAUSE_MS_MAX = 10_000;
/** A hidden page closes its connection: a browser allows six for all pages of a service. */
const UNSEEN_MS_MAX = 5000;
/** As many as the feed shows. */
const RECENT_MAX = 500;

const isSeen = () => document.visibilityState === "visible";

export class Live extends EventTarget {
  /** connecting, behind, live, waiting, asleep, shut */
  phase = "connecting";
  /** Verdicts of the backlog received so far. */
  caughtUp = 0;
  /** Some verdicts were missed: the service no longer retains them. */
  gap = false;
  /** Newest first. */
  recent = [];
  last = "";
  #tries = 0;
  #began = false;
  #wake = () => {};
  #abort = new AbortController();

  constructor() {
    super();
    const wake = () => isSeen() && this.#wake();
    addEventListener("online", wake);
    let unseen = 0;
    document.addEventListener("visibilitychange", () => {
      clearTimeout(unseen);
      if (isSeen()) this.#wake();
      else unseen = setTimeout(() => this.#abort.abort(), UNSEEN_MS_MAX);
    });
  }

  /** Reconnects, perhaps with another token. */
  restart() {
    this.#abort.abort();
    this.#tries = 0;
    this.#wake();
    if (!this.#began) this.#run();
    this.#began = true;
  }

  async #run() {
    for (;;) {
      if (!isSeen()) await this.#sleep("asleep", Infinity, "");
      this.#abort = new AbortController();
      let why = "";
      try {
        await this.#connect(this.#abort.signal);
      } catch (error) {
        why = error instanceof Refused ? error.message : "";
        if (error instanceof Refused && (error.status === 401 || error.status === 403)) {
          await this.#sleep("shut", Infinity, why);
          continue;
        }
        if (error.reason === "VERDICT_FORGOTTEN" || error.reason === "VERDICT_UNKNOWN") {
          this.last = "";
          this.gap = true;
          continue;
        }
      }
      if (!isSeen()) continue;
      const pause = Math.min(PAUSE_MS_MAX, PAUSE_MS * 2 ** this.#tries++);
      await this.#sleep("waiting", pause * (0.75 + Math.random() / 2), why);
    }
  }

  async #connect(signal) {
    if (this.phase !== "waiting") this.#enter("connecting");
    const request = this.last ? { after_verdict_id: this.last } : {};
    const response = await open("watch_verdicts", request, { signal });
    this.caughtUp = 0;
    this.#enter("behind");
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const silence = setTimeout(() => this.#abort.abort(), SILENCE_MS_MAX);
      const { done, value } = await reader.read().finally(() => clearTimeout(silence));
      if (done) return;
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) this.#take(event);
    }
  }

  #take(event) {
    const fields = {};
    for (const line of event.split("\n")) {
      const colon = line.indexOf(":");
      if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 1).replace(/^ /, "");
    }
    if (fields.event === "verdict") this.#verdict(JSON.parse(fields.data));
    else if (fields.event === "live") { this.#tries = 0; this.#enter("live"); }
    else if (fields.event === "end") throw new Refused(0, JSON.parse(fields.data));
  }

  #verdict(verdict) {
    // Ids sort by time.
    if (verdict.verdict_id <= this.last) return;
    const isFirst = this.last === "";
    this.last = verdict.verdict_id;
    this.recent.unshift(verdict);
    this.recent.length = Math.min(this.recent.length, RECENT_MAX);
    if (this.phase === "behind" && !isFirst) {
      this.caughtUp += 1;
      this.#enter("behind");
    }
    this.dispatchEvent(new CustomEvent("verdict", { detail: verdict }));
  }

  #enter(phase, why = "") {
    this.phase = phase;
    this.why = why;
    this.dispatchEvent(new Event("phase"));
  }

  #sleep(phase, pause, why) {
    this.retryAt = Date.now() + pause;
    this.#enter(phase, why);
    return new Promise((wake) => {
      const timer = pause === Infinity ? 0 : setTimeout(wake, pause);
      this.#wake = () => { clearTimeout(timer); wake(); };
    });
  }
}
