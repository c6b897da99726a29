// One client of the TypeScript SDK, told line by line what to do: see node.go.
//
//   node driver.mjs v1|v2
import { createInterface } from 'node:readline';

const version = process.argv[2];
const { Client, StreamableHTTPClientTransport, on, callTool } = await import(`./${version}.mjs`);

const say = line => process.stdout.write(JSON.stringify(line) + '\n');
const see = (kind, text = '') => say({ event: { kind, text: String(text) } });

const roots = [{ uri: 'file:///first', name: 'first' }];
const client = new Client({ name: `interop-${version}`, version: '1' }, {
  capabilities: { elicitation: { form: {}, url: {} }, sampling: {}, roots: { listChanged: true } },
});

on.request(client, 'elicitation/create', async ({ params }) => {
  if (params.mode === 'url') return { action: 'accept' };
  if (params.message.startsWith('refuse')) return { action: 'decline' };
  if (params.message.startsWith('slow')) await new Promise(done => setTimeout(done, 300));
  return { action: 'accept', content: { answer: 're: ' + params.message } };
});
on.request(client, 'sampling/createMessage', ({ params }) => ({
  model: 'm', role: 'assistant', content: { type: 'text', text: 're: ' + params.messages[0].content.text },
}));
on.request(client, 'roots/list', () => ({ roots }));
on.notification(client, 'notifications/message', ({ params }) => see('log', params.data));
on.notification(client, 'notifications/resources/updated', ({ params }) => see('updated', params.uri));
for (const kind of ['tools', 'prompts', 'resources']) {
  on.notification(client, `notifications/${kind}/list_changed`, () => see(kind));
}

let transport;
const ops = {
  async connect(url) {
    transport = new StreamableHTTPClientTransport(new URL(url));
    await client.connect(transport);
    return transport.sessionId;
  },
  async list() {
    return {
      Tools: (await client.listTools()).tools.map(t => t.name),
      Resources: (await client.listResources()).resources.map(r => r.uri),
      Prompts: (await client.listPrompts()).prompts.map(p => p.name),
    };
  },
  read: async uri => (await client.readResource({ uri })).contents[0].text,
  prompt: async who => (await client.getPrompt({ name: 'greet', arguments: { who } })).messages[0].content.text,
  async complete(value) {
    const ref = { type: 'ref/prompt', name: 'greet' };
    return (await client.complete({ ref, argument: { name: 'who', value } })).completion.values.join(' ');
  },
  async call(params, signal) {
    const onprogress = p => see('progress', p.message);
    const result = await callTool(client, params, { signal, onprogress });
    const { text } = result.content[0];
    if (result.isError) throw new Error(text);
    return text;
  },
  ping: () => client.ping(),
  setLevel: level => client.setLoggingLevel(level),
  subscribe: uri => client.subscribeResource({ uri }),
  unsubscribe: uri => client.unsubscribeResource({ uri }),
  addRoot(uri) {
    roots.push({ uri, name: uri });
    return client.sendRootsListChanged();
  },
  terminate: () => transport.terminateSession(),
};

const running = new Map();

async function run({ id, op, arg }) {
  const abort = new AbortController();
  running.set(id, abort);
  try {
    say({ id, value: (await ops[op](arg, abort.signal)) ?? null });
  } catch (err) {
    say({ id, error: `${err?.message ?? err}${err?.cause ? `: ${err.cause}` : ''}` });
  }
  running.delete(id);
}

createInterface({ input: process.stdin })
  .on('line', line => {
    const command = JSON.parse(line);
    if (command.op === 'abort') running.get(command.arg)?.abort('aborted');
    else run(command);
  })
  .on('close', () => process.exit());
