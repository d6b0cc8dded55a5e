// What the compiler sees of the package, from a module and from CommonJS.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import path from "node:path";
import { after, before, test } from "node:test";

import { PACKAGE } from "./service.js";

const CODE = `
import { query } from "@anthropic-ai/claude-agent-sdk";
import { Agent, Runner, tool as agentTool } from "@openai/agents";
import { generateText, type LanguageModel, stepCountIs, tool } from "ai";
import { createAgent } from "langchain";
import { z } from "zod";
import { Client, type Verdict } from "unstuck";
import { ClaudeGuard } from "unstuck/claude";
import { LangChainGuard } from "unstuck/langchain";
import { OpenAIAgentsGuard } from "unstuck/openai-agents";
import { VercelGuard } from "unstuck/vercel";

declare const model: LanguageModel;
const client = new Client();
const correct = (result: { text: string }, verdict: Verdict) => ({ text: result.text + verdict.pattern });
const read = client.guarded("s", "read", async (path: string, depth?: number) => ({ text: path.repeat(depth ?? 1) }), { correct });
export const text: Promise<{ text: string }> = read("a.rs", 1);
export const answer: Promise<Verdict | null> = client.record("s", "read", {}, { result: 1, callId: "1" });
// @ts-expect-error: the arguments are those of the function.
void read(5);
// @ts-expect-error: an option that there is not.
void client.record("s", "read", {}, { resul: 1 });

const vercel = new VercelGuard(client, "s");
const tools = vercel.tools({ read: tool({ inputSchema: z.object({ path: z.string() }), execute: async ({ path }) => path }) });
void generateText({ model, prompt: "x", tools, prepareStep: vercel.prepareStep, stopWhen: [stepCountIs(20), vercel.stopWhen] });
createAgent({ model: "openai:gpt", tools: [], middleware: [new LangChainGuard(client, "s").middleware] });
const agents = new OpenAIAgentsGuard(client, "s");
const agentTools = agents.tools([agentTool({ name: "r", description: "d", parameters: z.object({ path: z.string() }), execute: ({ path }) => path })]);
void new Runner(agents.runConfig).run(new Agent({ name: "a", tools: agentTools }), "x");
query({ prompt: "x", options: { hooks: new ClaudeGuard(client, "s").hooks } });
`;

let folder;
before(async () => {
  // Inside the package, so that its name and those of the frameworks are found.
  folder = await mkdtemp(path.join(PACKAGE, "build-types-"));
});
after(() => rm(folder, { recursive: true }));

for (const [extension, how] of [["mts", "a module"], ["cts", "CommonJS"]]) {
  test(`the types hold in ${how}`, async () => {
    const file = path.join(folder, `use.${extension}`);
    await writeFile(file, CODE);
    const options = ["--ignoreConfig", "--noEmit", "--strict", "--skipLibCheck", "--target", "es2022", "--lib", "es2023,esnext.disposable", "--types", "node", "--module", "nodenext"];
    const { status, stdout } = spawnSync(process.execPath, [path.join(PACKAGE, "node_modules/typescript/bin/tsc"), ...options, file], { cwd: folder, encoding: "utf8" });
    assert.equal(status, 0, stdout);
  });
}
