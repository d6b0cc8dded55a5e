import { correctionText, type Verdict } from "./verdict.js";

/**
 * Corrections that are shown to the model among messages which a framework builds anew for each
 * request. Each stays where it was said first, so that the model's cache of the text before it holds.
 */
export class Corrections {
  readonly #said: { after: number; text: string }[] = [];
  readonly #pending: string[] = [];

  add(verdict: Verdict | null): void {
    if (verdict) this.#pending.push(correctionText(verdict));
  }

  /** The messages with the corrections among them; the same list if there are none. */
  among<Message>(messages: Message[], make: (text: string) => Message): Message[] {
    for (const text of this.#pending.splice(0)) this.#said.push({ after: messages.length, text });
    if (this.#said.length === 0) return messages;
    return messages.flatMap((message, index) => {
      const here = this.#said.filter(({ after }) => after === index + 1);
      return [message, ...here.map(({ text }) => make(text))];
    });
  }
}
