import { Action as WireAction, type Verdict as WireVerdict } from "./gen/unstuck/v1/verdict.js";

/** What to do, weakest to strongest. */
export const ACTIONS = ["OK", "ALERT", "WARN", "THROTTLE", "CHECKPOINT", "ASK", "BLOCK", "BREAK", "ESCALATE", "TERMINATE"] as const;

/** What to do; `OK` is nothing. */
export type Action = (typeof ACTIONS)[number];

/** A distinct call of a loop. */
export interface Member {
  readonly tool: string;
  /** What it acted on; empty if unknown. */
  readonly target: string;
  /** Identifies the call; empty if it has no key. */
  readonly callKey: string;
}

/** What the service says of an event or a call. */
export class Verdict {
  /** What to do. */
  readonly action: Action;
  /** Unique; empty if the text of the verdict was lost. */
  readonly id: string;
  readonly sessionId: string;
  /** The sub-agent; empty: the main agent. */
  readonly agentId: string;
  /** The detector, or `operator`. */
  readonly detector: string;
  /** What happened, for a person. */
  readonly pattern: string;
  /** Why this action now, or the operator's reason. */
  readonly reason: string;
  /** Text for the model. */
  readonly correction: string;
  readonly loopId: string;
  /** The distinct calls of the loop. */
  readonly members: readonly Member[];
  /** How long to wait in milliseconds, with `THROTTLE`; else 0. */
  readonly retryAfter: number;

  /** @internal */
  constructor(action: number, sessionId: string, agentId: string, wire?: WireVerdict) {
    // An action of a newer service is treated as a warning.
    this.action = ACTIONS[action] ?? "WARN";
    this.id = wire?.verdictId ?? "";
    this.sessionId = wire?.sessionId || sessionId;
    this.agentId = wire?.agentId ?? agentId;
    this.detector = wire?.detector ?? "";
    this.pattern = wire?.pattern ?? "";
    this.reason = wire?.reason ?? "";
    this.correction = wire?.correction ?? "";
    this.loopId = wire?.loopId ?? "";
    this.members = wire?.members.map(({ tool, target, callKey }) => ({ tool, target, callKey })) ?? [];
    this.retryAfter = (wire?.retryAfter?.seconds ?? 0) * 1_000 + (wire?.retryAfter?.nanos ?? 0) / 1e6;
  }

  /** Whether the action is this one or a stronger one. */
  atLeast(action: Action): boolean {
    return ACTIONS.indexOf(this.action) >= ACTIONS.indexOf(action);
  }
}

/** The stronger of two verdicts, the first if they are equal. */
export function stronger(a: Verdict | null, b: Verdict | null): Verdict | null {
  return a && (!b || a.atLeast(b.action)) ? a : b;
}

/** The text with which a verdict is shown to the model. */
export function correctionText(verdict: Verdict): string {
  const text = verdict.correction || verdict.pattern || verdict.reason || "This is part of a loop: do something else.";
  const wait = verdict.action === "THROTTLE" && verdict.retryAfter > 0 ? ` Wait ${Math.round(verdict.retryAfter / 1_000)} s before you go on.` : "";
  return `[unstuck] ${text}${wait}`;
}

/** A call was refused: its verdict says why. The message is for the model. */
export class Refused extends Error {
  override readonly name = "Refused";
  constructor(readonly verdict: Verdict) {
    super(correctionText(verdict));
  }
}

/** The run is over: its verdict says why. */
export class Stopped extends Error {
  override readonly name = "Stopped";
  constructor(readonly verdict: Verdict) {
    super(`[unstuck] stopped: ${verdict.pattern || verdict.reason}`);
  }
}

export { WireAction };
