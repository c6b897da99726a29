// What is particular to @modelcontextprotocol/sdk, version 1.
import * as types from '@modelcontextprotocol/sdk/types.js';

export { Client } from '@modelcontextprotocol/sdk/client/index.js';
export { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';

const schemas = new Map(Object.values(types)
  .filter(s => s?.shape?.method && s.shape.params)
  .map(s => [s.shape.method.value ?? s.shape.method.def?.values?.[0], s]));

export const on = {
  request: (client, method, f) => client.setRequestHandler(schemas.get(method), f),
  notification: (client, method, f) => client.setNotificationHandler(schemas.get(method), f),
};

export const callTool = (client, params, options) => client.callTool(params, undefined, options);
