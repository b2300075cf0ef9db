// Starts `shardspec lsp` and hands it the specs that are open; all answers are the server's.
"use strict";

const vscode = require("vscode");
const { LanguageClient, TransportKind } = require("vscode-languageclient/node");

let client;

async function start() {
  const settings = vscode.workspace.getConfiguration("shardspec");
  const run = {
    command: settings.get("path"),
    args: ["lsp", "--stdio"],
    transport: TransportKind.stdio,
  };
  client = new LanguageClient("shardspec", "shardspec", run, {
    documentSelector: [{ language: "shardspec" }, { language: "yaml" }],
    initializationOptions: { inlayHints: { ...settings.get("inlayHints") } },
    synchronize: { configurationSection: "shardspec" },
  });
  try {
    await client.start();
  } catch (error) {
    client = undefined;
    // a command that is not there comes without an error of its own
    const reason = error?.message ?? "there is no such command";
    const settingsButton = "Open Settings";
    const chosen = await vscode.window.showErrorMessage(
      `${run.command} cannot be started: ${reason}. ` +
        "Run `pip install shardspec`, and say where the command is in `shardspec.path`.",
      settingsButton
    );
    if (chosen === settingsButton) {
      await vscode.commands.executeCommand("workbench.action.openSettings", "shardspec.path");
    }
  }
}

async function stop() {
  const running = client;
  client = undefined;
  if (running !== undefined) {
    await running.stop();
  }
}

function activate(context) {
  const restart = async () => {
    await stop();
    await start();
  };
  context.subscriptions.push(
    vscode.commands.registerCommand("shardspec.restart", restart),
    vscode.workspace.onDidChangeConfiguration((change) =>
      change.affectsConfiguration("shardspec.path") ? restart() : undefined
    )
  );
  return start();
}

module.exports = { activate, deactivate: stop };
