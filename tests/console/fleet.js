// An example fleet: some sessions loop in different ways, most work normally.

import { call, read, times } from "./service.js";

const coder = (team) => ({ agent: "coder", team });

export async function fleet(service) {
  const open = (session_id, labels, profile = "") => service.ask("OpenSession", { session_id, labels, profile });

  await open("coding/round-and-round", coder("billing"));
  const round = [call("search_file_content", "registerWebhook"), call("glob", "**/webhook*"), call("run_shell_command", "git log --oneline -3 -- src/payments")];
  await service.record("coding/round-and-round",
    { turn: { role: "ROLE_USER", text: "Why is the webhook not called?" } },
    read("README.md"), call("list_dir", "src"), read("src/webhooks.rs"), ...times(4, ...round), round[0]);

  await open("coding/invoice-rounding", coder("billing"));
  await service.record("coding/invoice-rounding", read("Cargo.toml"), read("src/lib.rs"), ...times(6, read("src/money.rs")));

  await open("coding/flaky-suite", coder("platform"), "strict");
  const failing = call("run_tests", "cargo test -p ledger", { outcome: "OUTCOME_ERROR", result: "", error: "assertion failed: left 3, right 4" });
  const edit = (number) => call("edit_file", "src/ledger.rs", { args_json: JSON.stringify({ line: number }), content_hash: `h${number}`, result: "" });
  await service.record("coding/flaky-suite", read("src/ledger.rs"), edit(1), failing, edit(2), failing, edit(3), failing, edit(4), failing);

  await open("research/price-history", { agent: "researcher", team: "care" });
  await service.record("research/price-history", ...times(5, call("web_fetch", "https://prices.example/api/v2", { outcome: "OUTCOME_ERROR", result: "", error: "HTTP 503 Service Unavailable" })));

  await open("support/refund-4471", { agent: "support", team: "care" });
  const sorry = { turn: { role: "ROLE_AGENT", text: "I understand your frustration with the refund. Let me look into the order and see what I can do for you." }, usage: { input_tokens: 2100, output_tokens: 40, cost_usd: 0.0069 } };
  await service.record("support/refund-4471", ...times(4, sorry));

  const files = ["auth", "cart", "search", "export", "mail", "queue", "cache", "admin", "report", "import"];
  for (const [number, file] of files.entries()) {
    const id = `coding/${file}-${100 + number}`;
    await open(id, coder(["web", "platform", "billing"][number % 3]));
    await service.record(id, read(`src/${file}.rs`), call("search_file_content", `fn ${file}`), call("edit_file", `src/${file}.rs`, { content_hash: "x" }), read(`tests/${file}.rs`));
  }
  await open("coding/wrong-branch", coder("web"));
  await service.record("coding/wrong-branch", ...times(3, read("src/old.rs")));
  await service.ask("TerminateSession", { session_id: "coding/wrong-branch", reason: "it works on the wrong branch" }, { "unstuck-operator": "mia" });
  await service.ask("EndSession", { session_id: "coding/import-109" });
}
