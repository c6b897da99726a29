// What is particular to @modelcontextprotocol/client, version 2.
export { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';

export const on = {
  request: (client, method, f) => client.setRequestHandler(method, f),
  notification: (client, method, f) => client.setNotificationHandler(method, f),
};

export const callTool = (client, params, options) => client.callTool(params, options);
