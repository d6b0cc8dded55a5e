// Written by `unstuck init`; `unstuck init --remove` deletes it.
import { spawn } from "node:child_process";

const COMMAND = __COMMAND__;

// What `unstuck hook` answers. {}: go on, whatever fails.
const ask = (event, session, body) =>
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

export const Unstuck = async ({ client, directory }) => {
  // A sub-agent has a session of its own below that of the person.
  const parents = new Map();
  const root = (id) => (parents.has(id) ? root(parents.get(id)) : id);
  const hook = async (event, id, body) => {
    const reply = await ask(event, root(id), { cwd: directory, ...body });
    if (reply.notify) {
      const body = { message: reply.notify, variant: "warning" };
      await client.tui.showToast({ body }).catch(() => {});
    }
    if (reply.abort) {
      await client.session.abort({ path: { id } }).catch(() => {});
    }
    return reply;
  };
  return {
    "chat.message": async (i, o) => {
      await hook("chat.message", i.sessionID, { i, o });
    },
    "tool.execute.before": async (i, o) => {
      const reply = await hook("tool.execute.before", i.sessionID, { i, o });
      const refusal = reply.deny ?? reply.abort;
      if (refusal) throw new Error(refusal);
    },
    "tool.execute.after": async (i, o) => {
      const reply = await hook("tool.execute.after", i.sessionID, { i, o });
      if (reply.append) o.output = `${o.output ?? ""}\n${reply.append}`;
    },
    "experimental.session.compacting": async (i) => {
      await hook("experimental.session.compacting", i.sessionID, { i });
    },
    event: async ({ event }) => {
      const { sessionID, info } = event.properties ?? {};
      const id = sessionID ?? info?.id;
      if (event.type === "session.created") {
        if (info?.parentID) parents.set(id, info.parentID);
        await hook("event:session.created", id, { sessionID: id, info });
      } else if (event.type === "session.idle") {
        await hook("event:session.idle", id, { sessionID: id });
      }
    },
  };
};
