import { ChatOpenAI } from "@langchain/openai";
import { createAgent, tool } from "langchain";
import { Client } from "unstuck";
import { LangChainGuard } from "unstuck/langchain";
import { z } from "zod";

const client = new Client();
const guard = new LangChainGuard(client, "langchain-example");
const read = tool(() => "fn main() {}", { name: "read_file", description: "Reads a file.", schema: z.object({ path: z.string() }) });
const agent = createAgent({ model: new ChatOpenAI({ model: "gpt-5" }), tools: [read], middleware: [guard.middleware] });
await agent.invoke({ messages: [{ role: "user", content: "Fix a.txt." }] });
console.log("stopped:", guard.stopped?.pattern);
await client.close();
