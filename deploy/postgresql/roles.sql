-- Roles with no more rights than they need. Run it as the owner of the tables, after each `aft db upgrade`: it may be
-- repeated. Then give a login of yours one of them: GRANT aft_app TO shop;
--
--   aft_app     dispatchers, processes that submit runs, and people who steer them
--   aft_reader  people and tools that only look
--
-- Only the owner may change the schema. Records of what people did can be added and read, not changed or deleted; whose
-- session it was is filled in by the server.

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['aft_app', 'aft_reader'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', name);
        END IF;
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), name);
    END LOOP;
    FOR name IN
        SELECT tablename FROM pg_tables WHERE schemaname = current_schema() AND tablename LIKE 'aft\_%'
    LOOP
        EXECUTE format('REVOKE ALL ON %I FROM PUBLIC, aft_app, aft_reader', name);
        EXECUTE format('GRANT SELECT ON %I TO aft_app, aft_reader', name);
        IF name NOT IN ('aft_audit', 'aft_schema_version') THEN
            EXECUTE format('GRANT INSERT, UPDATE, DELETE ON %I TO aft_app', name);
        END IF;
    END LOOP;
    FOR name IN
        SELECT sequencename FROM pg_sequences WHERE schemaname = current_schema() AND sequencename LIKE 'aft\_%'
    LOOP
        EXECUTE format('GRANT USAGE ON SEQUENCE %I TO aft_app', name);
    END LOOP;
END $$;

GRANT INSERT (id, run_id, actor, action, note, at, os_user), UPDATE (seq, hash) ON aft_audit TO aft_app;
