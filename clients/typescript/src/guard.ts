import { randomUUID } from "node:crypto";
import type { CallOptions, Client, Usage } from "./client.js";
import { type Action, correctionText, Refused, Stopped, type Verdict } from "./verdict.js";

// Of one guard, whose tokens are known; the one that was used longest ago is forgotten.
const RUNS_MAX = 256;

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
  /** Of each run the tokens so far: of the input, of the output, of the input from the cache. */
  readonly #totals = new Map<unknown, number[]>();
  #unsent = [0, 0, 0];

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
    const usage = options.usage ?? this.#takeUsage();
    const verdict = await this.client.record(this.session, tool, args, { ...options, usage, agent: options.agent ?? this.options.agent });
    if (!verdict) return null;
    this.#stop(verdict);
    return verdict.atLeast("WARN") ? verdict : null;
  }

  /**
   * Tells how many tokens a run has used so far. What is new goes with the next event. `run` is an
   * object that stays the same for the run, or an id of it, or of a single response.
   */
  used(run: unknown, inputTokens = 0, outputTokens = 0, cachedInputTokens = 0): void {
    const total = [inputTokens, outputTokens, cachedInputTokens];
    const before = this.#totals.get(run) ?? [0, 0, 0];
    this.#totals.delete(run);
    this.#totals.set(run, total);
    if (this.#totals.size > RUNS_MAX) this.#totals.delete(this.#totals.keys().next().value);
    this.#unsent = this.#unsent.map((unsent, index) => unsent + Math.max(0, total[index] - before[index]));
  }

  #takeUsage(): Usage | undefined {
    const [inputTokens, outputTokens, cachedInputTokens] = this.#unsent;
    this.#unsent = [0, 0, 0];
    return inputTokens || outputTokens ? { inputTokens, outputTokens, cachedInputTokens } : undefined;
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
