from msgpack import unpackb as unpackb
