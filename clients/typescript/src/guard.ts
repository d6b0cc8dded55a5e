import { randomUUID } from "node:crypto";
import type { CallOptions, Client } from "./client.js";
import { type Action, correctionText, Refused, Stopped, type Verdict } from "./verdict.js";

/** How a guard acts. */
export interface GuardOptions {
  /** The run is stopped from this action on. `ESCALATE` by default: the caller hands over. */
  stopAt?: Action;
  /** The sub-agent. */
  agent?: string;
}

/** How a guarded function acts. */
export interface GuardedOptions<Result = unknown> extends GuardOptions {
  /** Puts a correction into a result. By default it is appended to a text. */
  correct?: (result: Result, verdict: Verdict) => Result;
}

/** The guard of one session, which the adapters share. */
export class Guard {
  #stopped: Verdict | null = null;

  constructor(readonly client: Client, readonly session: string, readonly options: GuardOptions = {}) {}

  /** The verdict that stopped the run. */
  get stopped(): Verdict | null {
    return this.#stopped ?? this.client.stopped(this.session, this.options.agent);
  }

  /** The verdict if the call is to be refused; it is then recorded as refused. */
  async before(tool: string, args: unknown, options: CallOptions = {}): Promise<Verdict | null> {
    const verdict = this.stopped ?? (await this.client.check(this.session, tool, args, { agent: options.agent ?? this.options.agent }));
    // Nobody can be asked here, so ASK refuses too.
    if (!verdict?.atLeast("ASK")) return null;
    this.#stop(verdict);
    await this.after(tool, args, { ...options, outcome: "BLOCKED" });
    return verdict;
  }

  /** Records a call. The verdict if there is a correction for the model. */
  async after(tool: string, args: unknown, options: CallOptions): Promise<Verdict | null> {
    const verdict = await this.client.record(this.session, tool, args, { ...options, agent: options.agent ?? this.options.agent });
    if (!verdict) return null;
    this.#stop(verdict);
    return verdict.atLeast("WARN") ? verdict : null;
  }

  #stop(verdict: Verdict): void {
    if (verdict.atLeast(this.options.stopAt ?? "ESCALATE")) this.#stopped ??= verdict;
  }
}

const append = <Result>(result: Result, verdict: Verdict) => (typeof result === "string" ? (`${result}\n\n${correctionText(verdict)}` as Result) : result);

/** See {@link Client.guarded}. */
export function guardedFunction<Args extends unknown[], Result>(
  client: Client, session: string, tool: string, run: (...args: Args) => Result | Promise<Result>, options: GuardedOptions<Result> = {},
): (...args: Args) => Promise<Result> {
  const guard = new Guard(client, session, options);
  // Calls that run at the same time are of one model response.
  let running = 0;
  let rounds = 0;
  const prefix = randomUUID();
  const stopIfAsked = () => {
    if (guard.stopped) throw new Stopped(guard.stopped);
  };
  const guarded = async (...args: Args) => {
    const round = `${prefix}-${rounds}`;
    // One object is the arguments by name, as a model gives them.
    const named = args.length === 1 ? args[0] : args;
    const refusal = await guard.before(tool, named, { round });
    stopIfAsked();
    if (refusal) throw new Refused(refusal);
    let result: Result;
    try {
      result = await run(...args);
    } catch (error) {
      await guard.after(tool, named, { error, round });
      stopIfAsked();
      throw error;
    }
    const verdict = await guard.after(tool, named, { result: result === undefined ? "" : result, round });
    stopIfAsked();
    return verdict ? (options.correct ?? append)(result, verdict) : result;
  };
  return async (...args) => {
    if (running === 0) rounds += 1;
    running += 1;
    try {
      return await guarded(...args);
    } finally {
      running -= 1;
    }
  };
}
