import { query } from "@anthropic-ai/claude-agent-sdk";
import { Client } from "unstuck";
import { ClaudeGuard } from "unstuck/claude";

const client = new Client();
const guard = new ClaudeGuard(client, "claude-example");
try {
  for await (const message of query({ prompt: "Fix a.txt.", options: { hooks: guard.hooks } })) console.log(message.type);
} catch (error) {
  if (!guard.stopped) throw error;
}
console.log("stopped:", guard.stopped?.pattern);
await client.close();
