// Written by `unstuck init`; `unstuck init --remove` deletes it.
import { spawn } from "node:child_process";

const COMMAND: string[] = __COMMAND__;

// What `unstuck hook` answers. {}: go on, whatever fails.
const ask = (event: string, session: string, body: object): Promise<any> =>
  new Promise((resolve) => {
    try {
      const [program, ...rest] = COMMAND;
      const args = [...rest, "--event", event, "--session", session];
      const child = spawn(program, args, { stdio: ["pipe", "pipe", "ignore"], timeout: 2000 });
      let reply = "";
      child.stdout.on("data", (data) => (reply += data));
      child.on("error", () => resolve({}));
      child.on("close", () => {
        try {
          resolve(JSON.parse(reply));
        } catch {
          resolve({});
        }
      });
      child.stdin.on("error", () => {});
      child.stdin.end(JSON.stringify(body));
    } catch {
      resolve({});
    }
  });

export default function (pi: any) {
  const hook = async (event: string, ctx: any, body: object) => {
    const session = ctx.sessionManager.getSessionId();
    const reply = await ask(event, session, { cwd: ctx.cwd, ...body });
    if (reply.notify && ctx.hasUI) ctx.ui.notify(reply.notify, "warning");
    if (reply.abort) ctx.abort();
    return reply;
  };
  pi.on("session_start", async (e: any, ctx: any) => {
    await hook("session_start", ctx, { e, id: ctx.sessionManager.getSessionId() });
  });
  pi.on("input", async (e: any, ctx: any) => {
    const reply = await hook("input", ctx, e);
    if (reply.deny ?? reply.abort) return { action: "handled" };
  });
  pi.on("tool_call", async (e: any, ctx: any) => {
    const reply = await hook("tool_call", ctx, e);
    const reason = reply.deny ?? reply.abort;
    if (reason) return { block: true, reason };
  });
  pi.on("tool_result", async (e: any, ctx: any) => {
    const reply = await hook("tool_result", ctx, e);
    if (reply.append) return { content: [...e.content, { type: "text", text: reply.append }] };
  });
  pi.on("turn_end", async (e: any, ctx: any) => {
    const { turnIndex, message, toolResults } = e;
    const model = message?.model;
    const count = toolResults?.length ?? 0;
    await hook("turn_end", ctx, { turnIndex, usage: message?.usage, model, toolResults: count });
  });
  pi.on("session_compact", async (_: any, ctx: any) => {
    await hook("session_compact", ctx, {});
  });
}
