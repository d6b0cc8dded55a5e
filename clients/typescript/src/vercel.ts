/**
 * The guard of the Vercel AI SDK, for `generateText`, `streamText` and `ToolLoopAgent`.
 * @module
 */
import type { ModelMessage, StepResult, ToolSet } from "ai";
import type { Client } from "./client.js";
import { Corrections } from "./corrections.js";
import { Guard, type GuardOptions } from "./guard.js";
import { correctionText, type Verdict } from "./verdict.js";

/** Guards one session: give it the tools, and use `prepareStep` and `stopWhen`. */
export class VercelGuard {
  readonly #guard: Guard;
  readonly #refused = new Set<string>();
  readonly #seen = new WeakSet<object>();
  readonly #corrections = new Corrections();

  constructor(client: Client, session: string, options?: GuardOptions) {
    this.#guard = new Guard(client, session, options);
  }

  /** The verdict that stopped the run. */
  get stopped(): Verdict | null {
    return this.#guard.stopped;
  }

  /** The same tools; a call that is refused is answered with the correction. */
  tools<Tools extends ToolSet>(tools: Tools): Tools {
    const guarded = Object.entries(tools).map(([name, tool]) => {
      const { execute } = tool;
      if (!execute) return [name, tool];
      const checked = async (input: unknown, options: Parameters<typeof execute>[1]) => {
        const verdict = await this.#guard.before(name, input, { callId: options.toolCallId });
        if (!verdict) return execute(input as never, options);
        this.#refused.add(options.toolCallId);
        return correctionText(verdict);
      };
      return [name, { ...tool, execute: checked }];
    });
    return Object.fromEntries(guarded);
  }

  /** Stops the run when the service says so. */
  readonly stopWhen = async ({ steps }: { steps: StepResult<any>[] }): Promise<boolean> => {
    await this.#observe(steps);
    return this.#guard.stopped !== null;
  };

  /** Adds the corrections to what the model reads next. */
  readonly prepareStep = async ({ steps, messages }: { steps: StepResult<any>[]; messages: ModelMessage[] }): Promise<{ messages: ModelMessage[] }> => {
    await this.#observe(steps);
    return { messages: this.#corrections.among(messages, (content) => ({ role: "user", content })) };
  };

  /** Records the calls of the steps that are new. */
  async #observe(steps: StepResult<any>[]): Promise<void> {
    for (const [number, step] of steps.entries()) {
      if (this.#seen.has(step)) continue;
      this.#seen.add(step);
      if (step.text) void this.#guard.client.turn(this.#guard.session, "agent", step.text, { agent: this.#guard.options.agent });
      const { inputTokens, outputTokens, inputTokenDetails } = step.usage ?? {};
      let usage: object | undefined = { inputTokens, outputTokens, cachedInputTokens: inputTokenDetails?.cacheReadTokens };
      const answers = [];
      for (const part of step.content) {
        if (part.type !== "tool-result" && part.type !== "tool-error") continue;
        // A refused call was recorded when it was refused.
        if (this.#refused.delete(part.toolCallId)) continue;
        const options = { callId: part.toolCallId, round: `${step.response?.id ?? ""}-${number}`, usage };
        usage = undefined;
        const end = part.type === "tool-result" ? { result: part.output ?? "" } : { error: part.error ?? "failed" };
        answers.push(this.#guard.after(part.toolName, part.input, { ...options, ...end }));
      }
      for (const verdict of await Promise.all(answers)) this.#corrections.add(verdict);
    }
  }
}
