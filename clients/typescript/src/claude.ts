/**
 * The guard of the Claude Agent SDK.
 * @module
 */
import type { HookCallback, HookInput, Options, SyncHookJSONOutput } from "@anthropic-ai/claude-agent-sdk";
import type { CallOptions, Client } from "./client.js";
import { Guard, type GuardOptions } from "./guard.js";
import { asText } from "./text.js";
import { correctionText, type Verdict } from "./verdict.js";

// Ids of calls that failed or were refused until their batch ends.
const IDS_MAX = 1_024;

/** Guards one session: give its `hooks` to `query`. A sub-agent is watched separately and is stopped alone. */
export class ClaudeGuard {
  readonly #guard: Guard;
  readonly #subAgents = new Map<string, Guard>();
  readonly #errors = new Map<string, string>();
  readonly #refused = new Set<string>();

  constructor(client: Client, session: string, options?: GuardOptions) {
    this.#guard = new Guard(client, session, options);
  }

  /** The verdict that stopped the run. */
  get stopped(): Verdict | null {
    return this.#guard.stopped;
  }

  /** For `query({ options: { hooks: guard.hooks } })`. */
  get hooks(): NonNullable<Options["hooks"]> {
    const hook = (run: (input: any) => Promise<SyncHookJSONOutput>) => [{ hooks: [((input: HookInput) => run(input)) as HookCallback] }];
    return {
      PreToolUse: hook((input) => this.#before(input)),
      PostToolUseFailure: hook(async ({ tool_use_id, error }) => {
        if (this.#errors.size < IDS_MAX) this.#errors.set(tool_use_id, error);
        return {};
      }),
      PostToolBatch: hook((input) => this.#after(input)),
    };
  }

  #of(agent: string | undefined): Guard {
    if (!agent) return this.#guard;
    const { client, session, options } = this.#guard;
    const guard = this.#subAgents.get(agent) ?? new Guard(client, session, { ...options, agent });
    if (this.#subAgents.size >= IDS_MAX) this.#subAgents.clear();
    this.#subAgents.set(agent, guard);
    return guard;
  }

  async #before({ tool_name, tool_input, tool_use_id, agent_id }: any): Promise<SyncHookJSONOutput> {
    const guard = this.#of(agent_id);
    const verdict = await guard.before(tool_name, tool_input, { callId: tool_use_id });
    if (!verdict) return {};
    if (this.#refused.size < IDS_MAX) this.#refused.add(tool_use_id);
    const hookSpecificOutput = { hookEventName: "PreToolUse" as const, permissionDecision: "deny" as const, permissionDecisionReason: correctionText(verdict) };
    return { ...stop(guard), hookSpecificOutput };
  }

  async #after({ tool_calls, agent_id }: any): Promise<SyncHookJSONOutput> {
    const guard = this.#of(agent_id);
    const round = tool_calls[0]?.tool_use_id;
    const answers = tool_calls.map(({ tool_name, tool_input, tool_use_id, tool_response }: any) => {
      const error = this.#errors.get(tool_use_id);
      this.#errors.delete(tool_use_id);
      // A refused call was recorded when it was refused.
      if (this.#refused.delete(tool_use_id)) return null;
      const options: CallOptions = { callId: tool_use_id, round, ...(error === undefined ? { result: asText(tool_response) } : { error }) };
      return guard.after(tool_name, tool_input, options);
    });
    const corrections = (await Promise.all(answers)).flatMap((verdict: Verdict | null) => (verdict ? [correctionText(verdict)] : []));
    const hookSpecificOutput = { hookEventName: "PostToolBatch" as const, additionalContext: corrections.join("\n") };
    return corrections.length > 0 ? { ...stop(guard), hookSpecificOutput } : stop(guard);
  }
}

function stop({ stopped }: Guard): SyncHookJSONOutput {
  return stopped ? { continue: false, stopReason: correctionText(stopped) } : {};
}
