/**
 * The guard of LangChain and LangGraph.
 * @module
 */
import { AIMessage, type BaseMessage, HumanMessage, ToolMessage } from "@langchain/core/messages";
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
    // Corrections of calls that threw. What another middleware makes of it is not known here.
    const untold = new Set<string>();
    return createMiddleware({
      name: "Unstuck",
      wrapToolCall: async (request, handler) => {
        const { name, args, id = "" } = request.toolCall;
        // The calls of one answer of the model are one round.
        const answer = (request.state.messages as BaseMessage[]).findLast((message) => AIMessage.isInstance(message));
        const call: CallOptions = { callId: id, round: answer?.id };
        // Its tokens go with its first call.
        const used = (answer as AIMessage | undefined)?.usage_metadata;
        if (answer?.id && used) guard.used(answer.id, used.input_tokens, used.output_tokens, used.input_token_details?.cache_read);
        const refusal = await guard.before(name, args, call);
        if (refusal) return new ToolMessage({ content: correctionText(refusal), name, tool_call_id: id, status: "error" });
        let result: Awaited<ReturnType<typeof handler>>;
        try {
          result = await handler(request);
        } catch (error) {
          // LangGraph's way to interrupt a run for a person, who lets it go on later: not a failure.
          if ((error as { is_bubble_up?: boolean } | null)?.is_bubble_up) throw error;
          const verdict = await guard.after(name, args, { ...call, error });
          if (verdict) untold.add(correctionText(verdict));
          throw error;
        }
        const message = answerIn(result, id);
        const text = asText(message?.content) ?? "";
        const verdict = await guard.after(name, args, { ...call, ...(message?.status === "error" ? { error: text } : { result: text }) });
        if (verdict && message) correct(message, correctionText(verdict));
        return result;
      },
      beforeModel: {
        canJumpTo: ["end"],
        hook: () => {
          const { stopped } = guard;
          const texts = [...untold];
          untold.clear();
          if (!stopped) return texts.length > 0 ? { messages: [new HumanMessage(texts.join("\n"))] } : undefined;
          return { jumpTo: "end" as const, messages: [new AIMessage(`[unstuck] stopped: ${stopped.pattern || stopped.reason}`)] };
        },
      },
    });
  }
}

/** What the model reads: of a tool that changes the state (a Command), the answer among the new messages. */
function answerIn(result: unknown, callId: string): ToolMessage | undefined {
  if (ToolMessage.isInstance(result)) return result;
  const messages = (result as { update?: { messages?: unknown } } | null)?.update?.messages;
  if (!Array.isArray(messages)) return undefined;
  return messages.find((message): message is ToolMessage => ToolMessage.isInstance(message) && message.tool_call_id === callId);
}

function correct(message: ToolMessage, text: string): void {
  const { content } = message;
  message.content = typeof content === "string" ? `${content}\n\n${text}` : [...content, { type: "text", text }];
}
