/**
 * The guard of LangChain and LangGraph.
 * @module
 */
import { AIMessage, type BaseMessage, ToolMessage } from "@langchain/core/messages";
import { type AgentMiddleware, createMiddleware } from "langchain";
import type { CallOptions, Client } from "./client.js";
import { Guard, type GuardOptions } from "./guard.js";
import { asText } from "./text.js";
import { correctionText, type Verdict } from "./verdict.js";

/** Guards one session: give its `middleware` to `createAgent`. The run ends with a message that says why. */
export class LangChainGuard {
  readonly #guard: Guard;

  constructor(client: Client, session: string, options?: GuardOptions) {
    this.#guard = new Guard(client, session, options);
  }

  /** The verdict that stopped the run. */
  get stopped(): Verdict | null {
    return this.#guard.stopped;
  }

  /** For `createAgent({ middleware: [guard.middleware] })`. */
  get middleware(): AgentMiddleware {
    const guard = this.#guard;
    return createMiddleware({
      name: "Unstuck",
      wrapToolCall: async (request, handler) => {
        const { name, args, id = "" } = request.toolCall;
        // The calls of one answer of the model are one round.
        const answer = (request.state.messages as BaseMessage[]).findLast((message) => AIMessage.isInstance(message));
        const call: CallOptions = { callId: id, round: answer?.id?.slice(-128) };
        const refusal = await guard.before(name, args, call);
        if (refusal) return new ToolMessage({ content: correctionText(refusal), name, tool_call_id: id, status: "error" });
        let result: Awaited<ReturnType<typeof handler>>;
        try {
          result = await handler(request);
        } catch (error) {
          await guard.after(name, args, { ...call, error });
          throw error;
        }
        if (!ToolMessage.isInstance(result)) {
          await guard.after(name, args, { ...call, result: "" });
          return result;
        }
        const text = asText(result.content) ?? "";
        const verdict = await guard.after(name, args, { ...call, ...(result.status === "error" ? { error: text } : { result: text }) });
        return verdict ? corrected(result, correctionText(verdict)) : result;
      },
      beforeModel: {
        canJumpTo: ["end"],
        hook: () => {
          const { stopped } = guard;
          if (!stopped) return undefined;
          return { jumpTo: "end" as const, messages: [new AIMessage(`[unstuck] stopped: ${stopped.pattern || stopped.reason}`)] };
        },
      },
    });
  }
}

function corrected(result: ToolMessage, text: string): ToolMessage {
  const { content } = result;
  result.content = typeof content === "string" ? `${content}\n\n${text}` : [...content, { type: "text", text }];
  return result;
}
