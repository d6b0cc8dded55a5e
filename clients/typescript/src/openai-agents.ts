/**
 * The guard of the OpenAI Agents SDK.
 * @module
 */
import type { FunctionTool, RunConfig, Tool } from "@openai/agents";
import type { Client } from "./client.js";
import { Corrections } from "./corrections.js";
import { Guard, type GuardOptions } from "./guard.js";
import { correctionText, Stopped, type Verdict } from "./verdict.js";

// What the SDK tells the model of a tool that threw, unless the tool has an `errorFunction`.
const FAILED = "An error occurred while running the tool.";

/** How this guard acts. */
export interface OpenAIAgentsOptions extends GuardOptions {
  /** Whether a result says that the tool failed, for tools with an `errorFunction` of their own. */
  failed?: (result: unknown) => boolean;
}

/** Guards one session: give it the tools of the agents, and its `runConfig` to the runner. */
export class OpenAIAgentsGuard {
  readonly #guard: Guard;
  readonly #corrections = new Corrections();
  readonly #failed: (result: unknown) => boolean;
  #round = 0;

  constructor(client: Client, session: string, options: OpenAIAgentsOptions = {}) {
    this.#guard = new Guard(client, session, options);
    this.#failed = options.failed ?? (() => false);
  }

  /** The verdict that stopped the run. */
  get stopped(): Verdict | null {
    return this.#guard.stopped;
  }

  /** The same tools, observed; a call that is refused is answered with the correction. */
  tools<One extends Tool<any>>(tools: One[]): One[] {
    return tools.map((tool) => (tool.type === "function" ? (this.#observed(tool as FunctionTool<any>) as unknown as One) : tool));
  }

  /** For `new Runner(guard.runConfig)`: shows the corrections to the model, and throws `Stopped`. */
  readonly runConfig: Pick<RunConfig, "callModelInputFilter"> = {
    callModelInputFilter: ({ modelData }) => {
      if (this.#guard.stopped) throw new Stopped(this.#guard.stopped);
      this.#round += 1;
      return { ...modelData, input: this.#corrections.among(modelData.input, (content) => ({ role: "user", content })) };
    },
  };

  #observed(tool: FunctionTool<any>): FunctionTool<any> {
    const invoke: typeof tool.invoke = async (context, input, details) => {
      const call = { callId: details?.toolCall?.callId, round: `${this.#guard.session}-${this.#round}` };
      const { usage } = context;
      const cached = usage?.inputTokensDetails?.reduce((sum, part) => sum + (part.cached_tokens ?? 0), 0);
      if (usage) this.#guard.used(usage, usage.inputTokens, usage.outputTokens, cached);
      const refusal = await this.#guard.before(tool.name, input, call);
      if (refusal) return correctionText(refusal);
      let result: unknown;
      try {
        result = await tool.invoke(context, input, details);
      } catch (error) {
        this.#corrections.add(await this.#guard.after(tool.name, input, { ...call, error }));
        throw error;
      }
      const failed = (typeof result === "string" && result.startsWith(FAILED)) || this.#failed(result);
      this.#corrections.add(await this.#guard.after(tool.name, input, { ...call, ...(failed ? { error: result } : { result: result ?? "" }) }));
      return result as string;
    };
    return { ...tool, invoke };
  }
}
