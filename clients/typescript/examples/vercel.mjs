import { openai } from "@ai-sdk/openai";
import { generateText, tool } from "ai";
import { Client } from "unstuck";
import { VercelGuard } from "unstuck/vercel";
import { z } from "zod";

const client = new Client();
const guard = new VercelGuard(client, "vercel-example");
const read_file = tool({ description: "Reads a file.", inputSchema: z.object({ path: z.string() }), execute: () => "fn main() {}" });
const { prepareStep, stopWhen } = guard;
await generateText({ model: openai("gpt-5"), prompt: "Fix a.txt.", tools: guard.tools({ read_file }), prepareStep, stopWhen });
console.log("stopped:", guard.stopped?.pattern);
await client.close();
