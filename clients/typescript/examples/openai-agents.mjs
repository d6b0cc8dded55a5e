import { Agent, Runner, tool } from "@openai/agents";
import { Client } from "unstuck";
import { OpenAIAgentsGuard } from "unstuck/openai-agents";
import { z } from "zod";

const client = new Client();
const guard = new OpenAIAgentsGuard(client, "openai-agents-example");
const read = tool({ name: "read_file", description: "Reads a file.", parameters: z.object({ path: z.string() }), execute: () => "fn main() {}" });
const agent = new Agent({ name: "reader", model: "gpt-5", tools: guard.tools([read]) });
await new Runner(guard.runConfig).run(agent, "Fix a.txt.").catch((error) => {
  if (!guard.stopped) throw error;
});
console.log("stopped:", guard.stopped?.pattern);
await client.close();
